"""Windows with parts missing, begun anew, or noisy: no wrong finding, and no disease overlooked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from doctor_scenes import MIXED, QUEUED, SERIAL, everything
from doctor_series import SECONDS, Texts
from doctor_windows import Card, Host, Llm, Part, Unary, samples, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from observe.doctor.diagnosis import diagnose
from observe.doctor.finding import confidence
from observe.doctor.gather import DoctorError
from observe.series import named, parse
from observe.window import Window, of_samples

BUSY = (Llm(), Unary(), Card(), Host())
HEALTHY = texts(*BUSY)
GAUGES = ("running", "waiting", "pages_used", "pages_total", "healthy", "slots", "info", "pending_request_count")
CLEARED = 60  # the sample at which something happens


def is_counter(text: str) -> bool:
    name = parse(text).name
    ours = name.startswith(("gapless_", "nv_inference")) and not name.endswith(GAUGES)
    return (ours and "summary" not in name) or name.endswith("_seconds_total")


def triton_only(text: str) -> bool:
    return text.startswith(("nv_", "gapless_"))


def again_from_zero(series: Texts) -> Texts:
    """The server died and was back after seven samples, its counters at 0."""
    found = {}
    for text, values in series.items():
        changed = values.copy()
        if is_counter(text):
            changed[CLEARED:] = values[CLEARED:] - values[CLEARED]
        if triton_only(text):
            changed[CLEARED : CLEARED + 7] = np.nan
        found[text] = changed
    return found


def process_replaced(series: Texts) -> Texts:
    """One model's process died: what it published stays on the page for 25 s, with its waiting, Triton's is gone."""
    found = {}
    stale = slice(CLEARED, CLEARED + 25)
    for text, values in series.items():
        changed = values.copy()
        if text.startswith("nv_inference"):
            changed[CLEARED:] -= 0 if not is_counter(text) else changed[CLEARED]
            changed[stale] = np.nan
        elif text.startswith("gapless_"):
            changed[stale] = 9.0 if "waiting" in text else changed[CLEARED]
        found[text] = changed
    return found


def silent_for_a_while(series: Texts) -> Texts:
    return {text: np.where((np.arange(SECONDS) // 10) % 3 == 1, np.nan, values) for text, values in series.items()}


def just_started(series: Texts) -> Texts:
    """Not there for 20 samples; then counters at 0 for ten, and a first minute's queue while it warms up."""
    found = {}
    at = np.arange(SECONDS)
    for text, values in series.items():
        changed = values.copy()
        if triton_only(text):
            if is_counter(text):
                changed = np.maximum(0.0, values - values[30])
            if "running" in text:
                changed = np.where(at < 38, 1.0, values)
            if "waiting" in text or "pending" in text:
                changed = np.where((at >= 30) & (at < 38), 12.0, values)
            changed[:20] = np.nan
        found[text] = changed
    return found


def driver_lost(series: Texts) -> Texts:
    found = {text: values.copy() for text, values in series.items()}
    for text, values in found.items():
        if text.startswith(("nvml", "DCGM")):
            values[CLEARED:] = np.nan
    return found


CHANGES: dict[str, Callable[[Texts], Texts]] = {
    "begun anew": again_from_zero,
    "a process replaced": process_replaced,
    "gaps": silent_for_a_while,
    "just started": just_started,
    "the driver is lost": driver_lost,
}


def told(window: Window) -> list[str]:
    return [it.name for it in everything(diagnose(window)) if it.severity != "hint"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_happens_to_a_healthy_server_is_no_disease(change: str) -> None:
    assert told(of_samples(samples(CHANGES[change](texts(*BUSY))))) == []


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("sick", "name"), [(SERIAL, "one-at-a-time"), (MIXED, "tiers-missing"), (QUEUED, "one-at-a-time")]
)
def test_a_disease_is_seen_through_it(sick: Part, name: str, change: str) -> None:
    found = told(of_samples(samples(CHANGES[change](texts(sick, Host())))))
    assert found[0] == name


def test_hours_without_samples_are_neither_idle_nor_busy() -> None:
    one, other = samples(texts(*BUSY)), samples(texts(*BUSY), start=10**18 + 7200 * 10**9)
    diagnosis = diagnose(of_samples([*one, *other]))
    plain = diagnose(of_samples(one))
    assert diagnosis.findings == () and "Sampling paused once; the pauses are left out." in diagnosis.facts.notes
    assert diagnosis.facts.seconds == 2 * plain.facts.seconds == 2 * (SECONDS - 1)
    assert diagnosis.facts.llms[0].busy == pytest.approx(plain.facts.llms[0].busy, rel=1e-6)
    assert plain.facts.llms[0].busy == pytest.approx(30 * 0.02 * np.exp((np.log(2.5) / 2.3263) ** 2 / 2))


def test_restarts_and_missing_sources_are_told() -> None:
    series = again_from_zero(texts(*BUSY)) | {named("observe_up", source="NVML"): np.zeros(SECONDS)}
    notes = diagnose(of_samples(samples(series))).facts.notes
    assert "chat was started again once: the launcher's output says why." not in notes  # Triton counts embed only
    assert "embed was started again once: the launcher's output says why." in notes
    assert any(note.startswith("Not sampled: NVML.") for note in notes)


def curve(values: np.ndarray, name: str, **of: str) -> Window:
    """A memory over an hour, a sample every ten seconds."""
    series = {named(name, **of): values, named("nvml_memory_total_bytes", gpu="0"): np.full(len(values), 80e9)}
    return of_samples(samples(series, interval=10 * 10**9))


HOUR = np.arange(361) / 360
NOISE = np.random.default_rng(0).normal(0, 5e7, 361)
USED = "nvml_memory_used_bytes"


def test_a_leak_takes_half_an_hour_to_be_told_from_warming_up() -> None:
    leaking = curve(62e9 + 2e9 * HOUR + NOISE, USED, gpu="0")
    [finding] = diagnose(leaking).findings
    assert (finding.name, finding.about, finding.severity) == ("leak", "GPU 0", "problem")
    early = leaking.between(0, int(leaking.times[170]))
    assert diagnose(early).findings == ()
    assert {it.question: it.answer for it in diagnose(early).checks}["Is the memory curve calm?"] == "unknown"
    calm = diagnose(curve(62e9 + NOISE, USED, gpu="0"))
    assert calm.findings == () and {it.question: it.answer for it in calm.checks}["Is the memory curve calm?"] == "yes"
    warm = diagnose(curve(62e9 + 4e9 * (1 - np.exp(-20 * HOUR)) + NOISE, USED, gpu="0"))
    assert warm.findings == ()
    pages = diagnose(curve(100 + 800 * HOUR, "gapless_pages_used", model="chat"))
    assert pages.findings == ()  # a pool that fills


def test_gpus_that_only_triton_tells_of() -> None:
    of = {"gpu_uuid": "GPU-7"}
    card = {named("nv_gpu_utilization", **of): 0.2, named("nv_gpu_memory_used_bytes", **of): 60e9}
    card |= {named("nv_gpu_memory_total_bytes", **of): 80e9}
    series = texts(SERIAL) | {text: np.full(SECONDS, value) for text, value in card.items()}
    [cause] = diagnose(of_samples(samples(series))).findings
    assert ("GPU GPU-7", "full-idle") in {(it.about, it.name) for it in cause.symptoms}


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_too_short_a_window_says_how_long_it_must_be(count: int) -> None:
    with pytest.raises(DoctorError, match=rf"^holds {count} samples? over \d+ s; at least 10 over 10 s are needed"):
        diagnose(of_samples(samples(texts(*BUSY))[:count]))


def test_many_samples_of_a_moment_are_too_short_as_well() -> None:
    with pytest.raises(DoctorError, match=r"holds 120 samples over 1\.19 s"):
        diagnose(of_samples(samples(texts(*BUSY), interval=10**7)))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.1))
def test_noise_does_not_make_a_healthy_server_ill(seed: int, size: float) -> None:
    """The load moves, alike for all counters, and every gauge by itself."""
    random = np.random.default_rng(seed)
    load = np.exp(random.normal(0, 2 * size, SECONDS - 1))
    series = {}
    for text, values in HEALTHY.items():
        if is_counter(text):
            series[text] = values[0] + np.concatenate([[0.0], np.cumsum(np.diff(values) * load)])
        elif "info" in text or "held_down" in text or "observe" in text or "limit" in text:
            series[text] = values
        else:
            series[text] = values * np.exp(random.normal(0, size, SECONDS))
    assert told(of_samples(samples(series))) == []


def test_confidence_grows_with_length_effect_and_what_fits() -> None:
    base = confidence(30.0, 0.2).share
    assert confidence(60.0, 0.2).share > base and confidence(30.0, 0.9).share > base
    assert confidence(30.0, 0.2, ("it rains", True)).share > base > confidence(30.0, 0.2, ("it rains", False)).share
    assert confidence(30.0, 0.2, ("it rains", None)).share == base
    assert confidence(1e9, 1.0, ("it rains", True)).share < 1
