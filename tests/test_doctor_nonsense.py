"""Windows of nonsense: whatever stands in them, there is a diagnosis that can be printed and written."""

from __future__ import annotations

import io
import json

import numpy as np
from doctor_scenes import MIXED, QUEUED, SERIAL, everything
from doctor_series import SECONDS
from doctor_windows import Card, Host, Llm, Unary, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from observe import metrics
from observe.doctor.diagnosis import Diagnosis, as_json, diagnose
from observe.doctor.gather import DoctorError
from observe.doctor.report import shown
from observe.series import Series, parse
from observe.window import Window

BUSY = (Llm(), Unary(), Card(), Host())


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


def rendered(diagnosis: Diagnosis) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(shown(diagnosis))
    json.dumps(as_json("x", diagnosis), allow_nan=False)
    return console.export_text()


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
