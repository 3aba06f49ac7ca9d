"""Windows with parts missing, begun anew, noisy, or of nonsense: no wrong finding, and never a crash."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import numpy as np
import pytest
from doctor_windows import SECONDS, Card, Host, Llm, Part, Texts, Unary, samples, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from test_doctor_rules import MIXED, QUEUED, SERIAL, everything

from observe import metrics
from observe.doctor.diagnosis import Diagnosis, as_json, diagnose
from observe.doctor.gather import DoctorError
from observe.doctor.report import shown
from observe.series import Series, named, parse
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


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_too_short_a_window_says_how_long_it_must_be(count: int) -> None:
    with pytest.raises(DoctorError, match=rf"^holds {count} samples? over \d+ s; at least 10 over 10 s are needed"):
        diagnose(of_samples(samples(texts(*BUSY))[:count]))


def test_many_samples_of_a_moment_are_too_short_as_well() -> None:
    with pytest.raises(DoctorError, match=r"holds 120 samples over 1\.19 s"):
        diagnose(of_samples(samples(texts(*BUSY), interval=10**7)))


def rendered(diagnosis: Diagnosis) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(shown(diagnosis))
    json.dumps(as_json("x", diagnosis), allow_nan=False)
    return console.export_text()


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


KNOWN = sorted(
    {parse(text).name for text in texts(*BUSY, Card(xid=0.0), Unary(p99=1.0))}
    | {metric.name for metric in metrics.METRICS}
    | {"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "DCGM_FI_DEV_FB_USED"}
    | {"nv_inference_request_failure", "nv_pinned_memory_pool_used_bytes", "DCGM_FI_PROF_PCIE_RX_BYTES", "observe_up"}
)  # fmt: skip
labels = st.fixed_dictionaries(
    {"model": st.sampled_from(["a", "b"])},
    optional={
        "tier": st.sampled_from(["interactive", "batch", "x", ""]),
        "le": st.sampled_from(["0.1", "1", "5", "+Inf", "no number"]),
        "reason": st.sampled_from(["queue_full", "sw_power_cap", "REJECTED"]),
        "gpu": st.sampled_from(["0", "1"]),
        "gpu_uuid": st.just("GPU-1"),
        "of": st.sampled_from(["now", "most"]),
        "clock": st.just("sm"),
        "direction": st.sampled_from(["rx", "tx"]),
        "policy": st.sampled_from(["fcfs", "weighted"]),
        "max_model_len": st.sampled_from(["4096", "many"]),
        "weights": st.just("fp32"),
        "device": st.just("cuda:0"),
        "quantile": st.just("0.99"),
    },
)
series = st.builds(lambda name, of: Series(name, tuple(sorted(of.items()))), st.sampled_from(KNOWN), labels)
number = st.floats() | st.floats(0, 100) | st.sampled_from([0.0, 1.0, 1e6])


@st.composite
def curves(draw: st.DrawFn, count: int) -> np.ndarray:
    """Of any kind: nonsense, level, risen, with holes."""
    if draw(st.booleans()):
        return np.array(draw(st.lists(number, min_size=count, max_size=count)))
    values = np.cumsum(np.full(count, draw(number))) if draw(st.booleans()) else np.full(count, draw(number))
    values[: draw(st.integers(0, count))] = draw(number)
    return values


@st.composite
def windows(draw: st.DrawFn) -> Window:
    count = draw(st.integers(10, 24))
    gaps = draw(st.lists(st.sampled_from([0, 10**9, 10**9, 3 * 10**9, 3600 * 10**9]), min_size=count, max_size=count))
    named_series = draw(st.lists(series, min_size=1, max_size=40, unique=True))
    with np.errstate(all="ignore"):
        found = {one: draw(curves(count)) for one in named_series}
    return Window(np.cumsum(np.array(gaps, np.int64)), found)


SCENES = [texts(*parts) for parts in (BUSY, (SERIAL, QUEUED, Card(xid=9.0), Host()), (MIXED, Unary(p99=1.0), Card()))]
NONSENSE = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 1.0, 0.5, 1e9, 1e308, -1e308])


def spoiled(seed: int, lost: float, odd: float) -> Window:
    """A known window of which series are lost, and others say odd things, throughout or at times."""
    random = np.random.default_rng(seed)
    series = {}
    for text, values in SCENES[seed % len(SCENES)].items():
        if random.random() < odd:
            at = random.random(SECONDS) < random.choice([0.05, 1.0])
            values = np.where(at, random.choice(NONSENSE, SECONDS), values)
        if random.random() >= lost:
            series[parse(text)] = values
    return Window(np.arange(SECONDS, dtype=np.int64) * 10**9, series)


@settings(max_examples=80, deadline=None)
@given(
    windows()
    | st.builds(spoiled, st.integers(0, 2**32 - 1), st.sampled_from([0, 0.3, 0.7]), st.sampled_from([0, 0.1, 0.5]))
)
def test_no_window_crashes_it(window: Window) -> None:
    with np.errstate(all="ignore"):
        try:
            diagnosis = diagnose(window)
        except DoctorError:
            return
    assert rendered(diagnosis)
    for finding in everything(diagnosis):
        assert 0 <= finding.confidence.share < 1 and finding.evidence and finding.remedy
