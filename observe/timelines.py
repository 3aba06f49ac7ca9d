"""What a stretch of samples says over time, as named curves: of an LLM, of another model, of the machine.

What was not sampled gives no timeline. A rate is of the stretch since the sample before, and a mean over events is
missing where none happened. Must not know who draws them, nor when a load began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from observe import metrics
from observe.metrics import Metric
from observe.window import NEVER, Times, Values, Window


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


def of_machine(window: Window) -> list[Timeline]:
    """Of the machine that the samples were taken on, and of its GPUs."""
    return _known(_machine(window)) + _known(_gpus(window))


def engine(window: Window, model: str) -> dict[str, str]:
    """How an LLM of ours said at last that it runs; empty of other models."""
    for series in window.select(metrics.ENGINE.name, model=model):
        return {name: value for name, value in series.labels if name not in ("model", "version")}
    return {}


def _known(found: Iterator[Timeline]) -> list[Timeline]:
    return [one for one in found if one.known]


def _llm(window: Window, model: str) -> Iterator[Timeline]:
    def now(metric: Metric) -> Values:
        return total(window, metric.name, model=model)

    yield Timeline(
        "waiting", "Waiting inside the engine", "requests", "Requests that wait to start or, preempted, to go on, by "
        "tier. The engine brings these numbers up to date four times a second.", window.times,
        by_label(window, metrics.WAITING.name, "tier", model=model), by_tier=True,
    )  # fmt: skip
    yield Timeline(
        "running", "Running", "requests", "Requests that hold KV pages, and how many may.", window.times,
        {"running": now(metrics.RUNNING)}, limits={"slots": now(metrics.SLOTS)},
    )  # fmt: skip
    pages = {"used": now(metrics.PAGES_USED), "cached, free to take": now(metrics.PAGES_CACHED)}
    yield Timeline(
        "pages", "KV pages", "pages", "Leased by running requests, and kept for the prefix that they hold.",
        window.times, pages, limits={"all pages": now(metrics.PAGES_TOTAL)}, stacked=True,
    )  # fmt: skip
    yield from _steps(window, model)


def _steps(window: Window, model: str) -> Iterator[Timeline]:
    steps, spent, lost = (
        rises(window, name, model=model)
        for name in (f"{metrics.STEP.name}_count", f"{metrics.STEP.name}_sum", metrics.PREEMPTIONS.name)
    )
    yield Timeline(
        "step-time", "Mean time of a step", "ms", "Of the steps between two samples; nothing where there was none.",
        window.times, {"step": 1000 * per(spent, steps)}, since=True,
    )  # fmt: skip
    yield Timeline(
        "steps", "Steps", "per second", "Forward passes of the engine.", window.times,
        {"steps": _per_second(window, steps)}, since=True,
    )  # fmt: skip
    if np.nansum(lost):
        yield Timeline(
            "preemptions", "Preemptions", "per second", "Requests that lost their pages and were queued again.",
            window.times, {"preemptions": _per_second(window, lost)}, since=True,
        )  # fmt: skip


def _other(window: Window, model: str) -> Iterator[Timeline]:
    def rise(name: str) -> Values:
        return rises(window, f"nv_inference_{name}", model=model)

    served = rise("request_success")
    waited, computed = (per(rise(f"{part}_duration_us"), served) / 1000 for part in ("queue", "compute_infer"))
    yield Timeline(
        "pending", "Waiting in Triton's queue", "requests", "Requests that no instance has taken yet.", window.times,
        {"waiting": total(window, "nv_inference_pending_request_count", model=model)},
    )  # fmt: skip
    yield Timeline(
        "queue", "Mean time of a request in Triton", "ms", "Of requests that ended between two samples: in the queue, "
        "and in the model.", window.times, {"in the queue": waited, "in the model": computed}, since=True,
    )  # fmt: skip
    yield Timeline(
        "batch", "Mean batch", "items", "Items computed at once, of the executions between two samples.", window.times,
        {"items": per(rise("count"), rise("exec_count"))}, since=True,
    )  # fmt: skip


def _machine(window: Window) -> Iterator[Timeline]:
    cores = by_label(window, "host_cpu_percent", "core")
    each = {f"core {core}": cores[core] for core in sorted(cores, key=int)}
    mean = sum(cores.values()) / len(cores) if cores else np.full(len(window.times), NEVER)
    yield Timeline(
        "cpu", "CPU", "% of a core", "Each core, and the mean over all, of the time between two samples.", window.times,
        {"mean": np.asarray(mean)}, faint=each, since=True,
    )  # fmt: skip
    spent, resident = (f"host_process_{what}" for what in ("cpu_seconds_total", "rss_bytes"))
    found = _processes(window, spent)
    yield Timeline(
        "processes", "CPU of Triton's processes", "cores", "The server, and the Python process of each model.",
        window.times,
        {name: _per_second(window, rises(window, spent, **has)) for name, has in found.items()}, since=True,
    )  # fmt: skip
    yield Timeline(
        "memory", "Memory of Triton's processes", "GB", "What is resident; memory that they share counts in each.",
        window.times, {name: total(window, resident, **has) / 1e9 for name, has in found.items()},
    )  # fmt: skip


def _processes(window: Window, name: str) -> dict[str, dict[str, str]]:
    """What they are called, and the labels that select them."""
    found: dict[str, dict[str, str]] = {}
    for series in window.select(name):
        model = series.label("model")
        named = {"process": "model", "model": model} if model else {"process": "server"}
        found[f"model {model}" if model else "tritonserver"] = named
    return dict(sorted(found.items(), key=lambda one: (one[0] != "tritonserver", one[0])))


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


def total(window: Window, name: str, **labels: str) -> Values:
    """Sum over the series of a name at each sample; NaN where none is there."""
    return _sum(list(window.select(name, **labels).values()), len(window.times))


def by_label(window: Window, name: str, label: str, **labels: str) -> dict[str, Values]:
    """The same for each value of a label, which are sorted."""
    parts: dict[str, list[Values]] = {}
    for series, one in window.select(name, **labels).items():
        parts.setdefault(series.label(label), []).append(one)
    return {value: _sum(parts[value], len(window.times)) for value in sorted(parts)}


def rises(window: Window, name: str, **labels: str) -> Values:
    """How much the counters of a name rose together since the sample before; a fall is a restart from 0."""
    return _sum([_rise(one) for one in window.select(name, **labels).values()], len(window.times))


def per(amount: Values, events: Values) -> Values:
    """Amount an event; NaN where there was none."""
    return np.divide(amount, events, out=np.full(len(events), NEVER), where=events > 0)


def _rise(values: Values) -> Values:
    steps = np.diff(values, prepend=NEVER)
    return np.where(steps < 0, values, steps)


def _per_second(window: Window, rise: Values) -> Values:
    return per(rise, np.diff(window.times, prepend=window.times[:1]) / 1e9)


def _sum(parts: list[Values], length: int) -> Values:
    """At each sample of those that are there."""
    nothing = np.full(length, NEVER)
    return reduce(lambda a, b: np.where(np.isnan(a), b, np.where(np.isnan(b), a, a + b)), parts, nothing)
