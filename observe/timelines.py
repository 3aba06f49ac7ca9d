"""What a stretch of samples says over time, as named curves: of an LLM, of another model, of the machine.

What was not sampled gives no timeline. Rates, and means over events, are of stretches of SPAN: an engine brings its
counters up to date four times a second, and of shorter ones some would hold two updates and some none. A mean is
missing where nothing happened. Must not know who draws them, nor when a load began.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from observe import metrics, triton_metrics
from observe.curves import by_label, per, per_second, rises, since_before, thinned, together, total
from observe.metrics import Metric
from observe.window import NEVER, Times, Values, Window, newest

_SPANS = "stretches of 2 s or more"


@dataclass(frozen=True)
class Timeline:
    """Curves of one kind. Times (T,) in ns since the epoch; values (T,) in `unit`, NaN where nothing is known.

    `name` is its part of a file's name. `lines` are by label; `faint` ones are many of a kind; `limits` bound the
    lines. `by_tier`: labels of the lines are names of tiers. `stacked`: the lines are parts of a whole. `since`: a
    value is of all the time since the sample before, else of the instant.
    """

    name: str
    title: str
    unit: str
    about: str
    times: Times
    lines: Mapping[str, Values]
    faint: Mapping[str, Values] = field(default_factory=dict)
    limits: Mapping[str, Values] = field(default_factory=dict)
    by_tier: bool = False
    stacked: bool = False
    since: bool = False

    @property
    def known(self) -> bool:
        """Whether there is anything to see."""
        return any(not np.isnan(one).all() for one in [*self.lines.values(), *self.faint.values()])


def of_model(window: Window, model: str) -> list[Timeline]:
    """Of one served model: from inside where it is an LLM of ours, else from Triton's own counters."""
    ours = window.select(metrics.RUNNING.name, model=model)
    return _known(_llm(window, model) if ours else _other(window, model))


def of_machine(window: Window, models: Collection[str]) -> list[Timeline]:
    """Of the machine that the samples were taken on, and of its GPUs; processes of other models are told together."""
    return _known(_machine(window, models)) + _known(_gpus(window))


def engine(window: Window, model: str) -> dict[str, str]:
    """How an LLM of ours said at last that it runs; empty of other models."""
    found = newest(window.select(metrics.ENGINE.name, model=model).items())
    return {name: value for name, value in found.labels if name not in ("model", "version")} if found else {}


def _known(found: Iterator[Timeline]) -> list[Timeline]:
    return [one for one in found if one.known]


def _llm(window: Window, model: str) -> Iterator[Timeline]:
    def now(metric: Metric) -> Values:
        return total(window, metric.name, model=model)

    yield Timeline(
        "waiting", "Requests that wait in the engine", "requests", "To start or, preempted, to go on. The "
        "engine brings these numbers up to date four times a second.", window.times,
        by_label(window, metrics.WAITING.name, "tier", model=model), by_tier=True,
    )  # fmt: skip
    yield Timeline(
        "running", "Running requests", "requests", "Requests that hold KV pages, and how many may.", window.times,
        {"running": now(metrics.RUNNING)}, limits={"slots": now(metrics.SLOTS)},
    )  # fmt: skip
    pages = {"used": now(metrics.PAGES_USED), "cached, free to take": now(metrics.PAGES_CACHED)}
    yield Timeline(
        "pages", "KV pages", "pages", "Leased by running requests, and kept for the prefixes in them.",
        window.times, pages, limits={"all pages": now(metrics.PAGES_TOTAL)}, stacked=True,
    )  # fmt: skip
    yield from _steps(thinned(window), model)


def _steps(window: Window, model: str) -> Iterator[Timeline]:
    steps, spent, lost = (
        rises(window, name, model=model)
        for name in (f"{metrics.STEP.name}_count", f"{metrics.STEP.name}_sum", metrics.PREEMPTIONS.name)
    )
    yield Timeline(
        "step-time", "Mean time of a step", "ms", f"Of the steps in {_SPANS}; nothing where there was none.",
        window.times, {"step": 1000 * per(spent, steps)}, since=True,
    )  # fmt: skip
    yield Timeline(
        "steps", "Steps", "per second", f"Forward passes of the engine, in {_SPANS}.", window.times,
        {"steps": per_second(window, steps)}, since=True,
    )  # fmt: skip
    if np.nansum(lost):
        yield Timeline(
            "preemptions", "Preemptions", "per second", "Requests that lost their pages and were queued again.",
            window.times, {"preemptions": per_second(window, lost)}, since=True,
        )  # fmt: skip


def _other(window: Window, model: str) -> Iterator[Timeline]:
    def rise(name: str) -> Values:
        return rises(spans, name, model=model)

    spans = thinned(window)
    served = rise(triton_metrics.DONE)
    waited, computed = (per(rise(triton_metrics.spent(part)), served) / 1000 for part in ("queue", "compute_infer"))
    yield Timeline(
        "pending", "Requests that wait in Triton's queue", "requests", "No instance has taken them yet.", window.times,
        {"waiting": total(window, triton_metrics.PENDING, model=model)},
    )  # fmt: skip
    yield Timeline(
        "queue", "Mean time of a request in Triton", "ms", f"Of requests that ended in {_SPANS}: in the queue, and in "
        "the model.", spans.times, {"in the queue": waited, "in the model": computed}, since=True,
    )  # fmt: skip
    yield Timeline(
        "batch", "Mean batch", "items", f"Items computed at once, in {_SPANS}.", spans.times,
        {"items": per(rise(triton_metrics.COUNT), rise(triton_metrics.RUNS))}, since=True,
    )  # fmt: skip


def _machine(window: Window, models: Collection[str]) -> Iterator[Timeline]:
    cores = by_label(window, "host_cpu_percent", "core")
    each = {f"core {core}": cores[core] for core in sorted(cores, key=int)}
    mean = sum(cores.values()) / len(cores) if cores else np.full(len(window.times), NEVER)
    yield Timeline(
        "cpu", "CPU", "% of a core", "Each core, and the mean over all, from sample to sample.", window.times,
        {"mean": np.asarray(mean)}, faint=each, since=True,
    )  # fmt: skip
    spans = thinned(window)
    yield Timeline(
        "processes", "CPU of Triton's processes", "cores", f"Servers, and Python processes of models, in {_SPANS}.",
        spans.times, {
            whose: per_second(spans, rise)
            for whose, rise in _by_process(spans, "host_process_cpu_seconds_total", models, since_before).items()
        }, since=True,
    )  # fmt: skip
    resident = _by_process(window, "host_process_rss_bytes", models, lambda values: values)
    yield Timeline(
        "memory", "Memory of Triton's processes", "GB", "What is resident; memory that they share counts in each.",
        window.times, {whose: one / 1e9 for whose, one in resident.items()},
    )  # fmt: skip


def _by_process(
    window: Window, name: str, models: Collection[str], of: Callable[[Values], Values]
) -> dict[str, Values]:
    """Sums of what `of` makes of a name's series: all servers, each of the models, all others."""
    parts: dict[str, list[Values]] = {}
    for series, one in window.select(name).items():
        model = series.label("model")
        whose = "tritonserver" if not model else f"model {model}" if model in models else "other models"
        parts.setdefault(whose, []).append(of(one))
    order = ["tritonserver", *(f"model {model}" for model in models), "other models"]
    return {whose: together(parts[whose], len(window.times)) for whose in order if whose in parts}


def _gpus(window: Window) -> Iterator[Timeline]:
    """As Triton's page tells of those it serves with, where it does, or else as the driver of this machine does."""
    if window.select("nv_gpu_utilization"):
        label, prefix, busy = "gpu_uuid", "nv_gpu", by_label(window, "nv_gpu_utilization", "gpu_uuid")
        busy, power = {gpu: 100 * one for gpu, one in busy.items()}, "nv_gpu_power_usage"
    else:
        label, prefix, power = "gpu", "nvml", "nvml_power_watts"
        busy = by_label(window, "nvml_utilization_percent", label)
    names = {gpu: f"GPU {at}" for at, gpu in enumerate(sorted(busy, key=lambda one: (len(one), one)))}

    def lines(name: str, unit: float = 1.0, what: str = "") -> dict[str, Values]:
        found = by_label(window, name, label)
        return {f"{names[gpu]}{what}": found[gpu] / unit for gpu in names if gpu in found}

    yield Timeline(
        "gpu", "GPU utilization", "%", "Share of the time in which any kernel ran, full or not.", window.times,
        {names[gpu]: busy[gpu] for gpu in names}, since=True,
    )  # fmt: skip
    yield Timeline(
        "gpu-memory", "GPU memory", "GB", "In use, and all there is.", window.times,
        lines(f"{prefix}_memory_used_bytes", 1e9), limits=lines(f"{prefix}_memory_total_bytes", 1e9, ", all"),
    )  # fmt: skip
    yield Timeline("gpu-power", "GPU power", "W", "Drawn at the moment.", window.times, lines(power))
