"""Models of both kinds in one file, without a server: what is said of each, and which of them a command means."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from sla_files import CHAT, CLASSIFY, EMBED, IDLE, spec

from config_gen.sla.spec import SpecError
from gapless.errors import UsageError
from gapless.loads import judged
from gapless.parts import pick_llm, pick_parts
from loadtest.capacity import served_requests
from loadtest.report import ModelReport, Report, as_json, show
from loadtest.run import Client
from loadtest.samples import Outcome, Sample
from loadtest.schedule import Part

SECOND, MS = 10**9, 10**6
CLIENT = Client(send_lag=1 * MS, loop_lag=2 * MS, cpu=0.1)


def sample(model: str, e2e: int, outcome: Outcome = "ok", tier: str = "a") -> Sample:
    """An answer of four tokens, the first after half of the time; or in one piece, of any model but the chat."""
    asked = 4 if model == "chat" and outcome == "ok" else 0
    messages = ((e2e // 2, 1), (e2e, 3)) if asked else ()
    error = "" if outcome == "ok" else "Exceeds maximum queue size"
    first = messages[0][0] if messages else None
    return Sample("x", model, tier, 0, 0, first, e2e, messages, outcome, error, "", asked, 7, 0, asked)


def report(parts: list[Part], taken: list[Sample], client: Client = CLIENT) -> Report:
    models = [judged(part, [s for s in taken if s.model == part.name], 10 * SECOND, client) for part in parts]
    return Report(10 * SECOND, 0, 1, client, models, [])


def text_of(found: Report) -> str:
    console = Console(width=120)
    with console.capture() as seen:
        show(found, console)
    return seen.get()


def test_a_report_has_a_part_for_each_model_and_no_tokens_where_there_are_none() -> None:
    parts = pick_parts(spec(CHAT, EMBED), None)
    chat = [sample("chat", 8 * MS)] * 5
    good, refused = [sample("embed", 50 * MS)] * 3, [sample("embed", 1 * MS, "rejected")] * 2
    found = report(parts, [*chat, *good, *refused])
    assert found.held
    told = json.loads(json.dumps(as_json(found), allow_nan=False))["models"]
    assert list(told) == ["chat", "embed"]
    embed = told["embed"]["classes"]["a"]
    assert (embed["sent"], embed["ok"], embed["rejected"], embed["achieved_per_s"]) == (5, 3, 2, 0.3)
    assert embed["e2e_s"] == {"p50": 0.05, "p95": None, "p99": None, "samples": 5}
    assert {"ttft_s", "itl_s", "output_tokens_per_s"} & set(embed) == set()
    assert told["chat"]["classes"]["a"]["itl_s"]["samples"] == 15
    assert [(v["metric"], v["verdict"]) for v in told["embed"]["verdicts"]] == [("e2e", "kept")]
    shown = text_of(found)
    heads = re.findall(r"^(chat|embed|a: sent \d+|b: sent \d+|TTFT|ITL|E2E)\b(?! is)", shown, re.MULTILINE)
    expected = ["chat", "a: sent 5", "TTFT", "ITL", "E2E", "embed", "a: sent 5", "E2E", "b: sent 0", "E2E"]
    assert heads == expected
    assert shown.count("output tokens/s") == 1
    assert "All 2 promises were kept." in shown


def test_one_broken_promise_of_one_model_is_enough() -> None:
    parts = pick_parts(spec(CHAT, EMBED), None)
    for chat, embed, kept in ((8, 50, [True, True]), (8, 101, [True, False]), (3000, 50, [False, True])):
        found = report(parts, [sample("chat", chat * MS)] * 5 + [sample("embed", embed * MS)] * 5)
        assert [model.held for model in found.models] == kept
        assert found.held is all(kept)
        assert as_json(found)["held"] is all(kept)


def test_a_model_without_promises_breaks_none_and_promises_nothing() -> None:
    parts = pick_parts(spec(CLASSIFY, EMBED), None)
    taken = [sample("classify", MS)] * 5 + [sample("embed", 50 * MS)] * 5
    assert report(parts, taken).held
    nothing = Report(SECOND, 0, 1, CLIENT, [ModelReport("x", [], []), ModelReport("y", [], [])], [])
    assert not nothing.held
    assert nothing.conclusion == "No verdict: models.x.targets and models.y.targets declare none."


def test_lag_takes_the_verdicts_of_the_models_it_is_too_much_for() -> None:
    """60 ms: more than the 50 that short promises allow, less than a twentieth of two seconds."""
    parts = pick_parts(spec(CHAT.replace("ttft: 1s", "ttft: 2s"), EMBED), None)
    taken = [sample("chat", 8 * MS)] * 5 + [sample("embed", 50 * MS)] * 5
    found = report(parts, taken, Client(60 * MS, 0, 0.1))
    assert [[v.ruling for v in model.verdicts] for model in found.models] == [["kept"], ["none"]]
    assert not found.held and found.lagged is None
    assert found.conclusion == "Not every promise has a verdict: of 2, 1 without a verdict."
    assert "the client itself lagged" in text_of(found)
    assert report(parts, taken, Client(200 * MS, 0, 0.1)).conclusion.startswith("No verdict: the client itself lagged")


def test_capacity_counts_answers_in_one_piece_as_they_come() -> None:
    assert served_requests([sample("embed", MS), sample("embed", MS, "failed"), sample("chat", MS)]) == 2


def test_who_is_loaded() -> None:
    everything = spec(CHAT, EMBED, CLASSIFY, IDLE)
    parts = pick_parts(everything, None)
    assert [part.name for part in parts] == ["chat", "embed", "classify"]
    assert [part.texts is not None for part in parts] == [True, True, False]
    assert [part.rate for part in parts] == [5, 30, 50]
    assert [part.name for part in pick_parts(everything, "embed")] == ["embed"]
    with pytest.raises(SpecError, match=r"^models\.idle\.traffic: is empty; declare what at least one tier sends$"):
        pick_parts(everything, "idle")
    with pytest.raises(SpecError, match=r"^models: none of idle, more has traffic; declare"):
        pick_parts(spec(IDLE, IDLE.replace("idle", "more")), None)
    with pytest.raises(UsageError, match=r"^--tokenizer: counts the texts of one model, and chat and embed would"):
        pick_parts(everything, None, Path("tokenizer.json"))


def test_who_is_simulated() -> None:
    assert pick_llm(spec(EMBED, CHAT, CLASSIFY), None)[0] == "chat"
    assert pick_llm(spec(EMBED, CHAT), "chat")[0] == "chat"
    with pytest.raises(SpecError, match=r"^models\.embed\.kind: 'onnx' has no tokens to schedule; allowed here: llm$"):
        pick_llm(spec(EMBED, CHAT), "embed")
    with pytest.raises(SpecError, match=r"^models: none is of kind llm"):
        pick_llm(spec(EMBED), None)
    with pytest.raises(SpecError, match=r"^--model is needed; the file declares chat, other$"):
        pick_llm(spec(CHAT, EMBED, CHAT.replace("chat:", "other:")), None)
