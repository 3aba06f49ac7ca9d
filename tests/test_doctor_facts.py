"""Facts of windows in which something was not told: it is unknown, never zero."""

from __future__ import annotations

import numpy as np
import pytest
from doctor_scenes import HUNG, STARVING, everything
from doctor_series import SECONDS
from doctor_windows import Llm, samples, texts, window

from observe.doctor.diagnosis import diagnose
from observe.series import named
from observe.window import of_samples


@pytest.mark.parametrize(
    ("lost", "names"),
    [("", ["hangs"]), ("gapless_steps_total", []), ("gapless_service_total", [])],
)
def test_what_nobody_told_is_not_zero(lost: str, names: list[str]) -> None:
    series = {text: values for text, values in texts(HUNG).items() if not lost or not text.startswith(lost)}
    diagnosis = diagnose(of_samples(samples(series)))
    assert [it.name for it in everything(diagnosis) if it.severity != "hint"] == names
    [llm] = diagnosis.facts.llms
    assert (llm.steps is None, llm.tiers[0].unserved is None) == (lost == "gapless_steps_total", "service" in lost)
    assert (llm.refused, llm.finished) == (None, 0)  # no counter of refusals; some of those that ended


def test_numbers_of_a_model_that_answers_in_one_piece_are_unknown_where_they_are_not_told() -> None:
    pending = {named("nv_inference_pending_request_count", model="embed"): np.full(SECONDS, 9.0)}
    done = {named("nv_inference_request_success", model="embed"): np.full(SECONDS, 9.0)}
    [embed] = diagnose(of_samples(samples(pending | done))).facts.unary
    assert (embed.requests, embed.executions, embed.refused) == (None, None, None)


def test_a_tier_is_unserved_only_between_samples_that_tell_its_service() -> None:
    """It waits for two minutes, and its service, which never rises, is told for the last 30 s only."""
    service = named("gapless_service_total", model="chat", tier="batch")
    series = texts(STARVING)
    series[service] = np.where(np.arange(SECONDS) >= SECONDS - 31, series[service], np.nan)
    page = {named("observe_up", source="Triton"): np.ones(SECONDS)}
    [llm] = diagnose(of_samples(samples(series | page))).facts.llms
    assert {tier.name: tier.unserved for tier in llm.tiers}["batch"] == 30


def test_room_for_more_requests_is_told_by_how_often_there_was_none() -> None:
    """Of 120 samples, 12 with all of 32 slots taken, as a flood ends, and none later: its peak is not the window's."""
    llm = Llm(running=np.where(np.arange(SECONDS) < SECONDS // 10, 32.0, 3.0))
    checks = {it.question: (it.answer, it.told) for it in diagnose(window(llm)).checks}
    assert checks["Does max_num_seqs leave room?"] == ("yes", "chat: all 32 in use in 10% of the samples")
