"""Which memories a window holds, and what their curves say, in sentences and as JSON.

Must not know how curves are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan
from typing import NamedTuple

from observe import metrics
from observe.amounts import show_bytes, show_pages, show_time
from observe.memory_curve import Curve, Growth, study
from observe.series import Series
from observe.window import Values, Window

MIB = float(2**20)
WATCHED = 1800.0  # s, before which growth may be warming up


@dataclass(frozen=True, slots=True)
class Memory:
    """Series of used memory and what bounds it, found by the labels that they share.

    The limit is the sum of the series named in `limit`, less those in `less`; `reserved` says that all of the limit
    is taken already, used or not. `scale`: bytes of one unit of the series, 0 where it counts pages.
    """

    used: str
    what: str  # with labels in braces
    limit: tuple[str, ...]
    less: tuple[str, ...] = ()
    scale: float = 1.0
    reserved: bool = False


MEMORIES = (
    Memory("nvml_memory_used_bytes", "GPU {gpu}", ("nvml_memory_total_bytes",), ("nvml_memory_reserved_bytes",)),
    Memory("DCGM_FI_DEV_FB_USED", "GPU {gpu} (DCGM)", ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"), scale=MIB),
    Memory("nv_gpu_memory_used_bytes", "{gpu_uuid} (Triton)", ("nv_gpu_memory_total_bytes",)),
    Memory("nv_pinned_memory_pool_used_bytes", "pinned memory", ("nv_pinned_memory_pool_total_bytes",), reserved=True),
    Memory(metrics.PAGES_USED.name, "KV pages of {model}", (metrics.PAGES_TOTAL.name,), scale=0, reserved=True),
    Memory("host_process_rss_bytes", "{process} {model} (process {pid})", ("host_memory_total_bytes",)),
    Memory("host_memory_used_bytes", "this machine", ("host_memory_total_bytes",)),
)
NAMES = {name for memory in MEMORIES for name in (memory.used, *memory.limit, *memory.less)}


class Told(NamedTuple):
    """One memory: what it is called, whether it counts `bytes` or `pages`, its curve, sentences with its numbers."""

    name: str
    unit: str
    curve: Curve
    sentences: list[str]

    @property
    def leaks(self) -> bool:
        return self.curve.growth.ruling == "leak"


def wanted(series: Series) -> bool:
    """Whether a series is needed for what is said here."""
    return series.name in NAMES


def told(window: Window) -> Iterator[Told]:
    """What each memory of a window shows."""
    for memory in MEMORIES:
        for series, used in window.select(memory.used).items():
            limit = _limit(window, memory, dict(series.labels))
            scale = memory.scale or 1.0
            bound = None if limit is None else limit * scale
            curve = study(window.times, used * scale, bound, bound if memory.reserved else None)
            if curve is not None:
                curve = _patient(curve)
                labels = {name: series.label(name) for name in ("gpu", "gpu_uuid", "model", "process", "pid")}
                name = " ".join(memory.what.format(**labels).split())
                unit, show = ("bytes", show_bytes) if memory.scale else ("pages", show_pages)
                yield Told(name, unit, curve, list(sentences(curve, show)))


def _patient(curve: Curve) -> Curve:
    """The same; one that was not watched for long says nothing of leaks, nor a slope."""
    if curve.seconds >= WATCHED:
        return curve
    why = f"watched for {show_time(curve.seconds)}; half an hour is needed to tell a leak"
    was = curve.growth
    return replace(curve, growth=Growth("unclear", nan, nan, nan, nan, was.points, was.of, why))


def as_json(found: list[Told]) -> dict[str, object]:
    """All of them; times in seconds, amounts in each memory's unit, slopes a second, null where nothing is known."""
    return {"leaking": [one.name for one in found if one.leaks], "memories": [_memory_json(one) for one in found]}


def _memory_json(one: Told) -> dict[str, object]:
    curve = asdict(one.curve) | {"until_full": one.curve.until_full}
    known: dict[str, object] = {name: _known(value) for name, value in curve.items()}
    return {"name": one.name, "unit": one.unit, **known, "sentences": one.sentences}


def _known(value: object) -> object:
    """The same without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _known(inner) for name, inner in value.items()}
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    return value


def sentences(curve: Curve, show: Callable[[float], str]) -> Iterator[str]:
    """`show` says an amount of it."""
    change = curve.last - curve.first
    moved = f"{show(abs(change))} {'more' if change >= 0 else 'less'} than at first"
    yield f"{show(curve.last)} used after {show_time(curve.seconds)}, {moved}."
    if curve.limit:
        yield f"At its peak {show(curve.peak)} of {show(curve.limit)}, {curve.peak / curve.limit:.0%}."
    else:
        yield f"At its peak {show(curve.peak)}; its limit is not known."
    if curve.reserved_unused is not None:
        yield f"All of that is reserved; {curve.reserved_unused:.0%} was not even used at the peak."
    yield _teeth(curve, show)
    yield _growth(curve, show)


def _teeth(curve: Curve, show: Callable[[float], str]) -> str:
    teeth = curve.teeth
    if not teeth.count:
        return "It is calm: it never fell by more than noise."
    if teeth.count == 1:
        return f"It fell once, by {show(teeth.height)}."
    return f"It rises and falls: {teeth.count} teeth of {show(teeth.height)}, one every {show_time(teeth.period)}."


def _growth(curve: Curve, show: Callable[[float], str]) -> str:
    growth = curve.growth
    if growth.ruling == "unclear":
        return f"Whether it leaks cannot be said: {growth.why}."
    unit, each = (3600.0, "an hour") if curve.seconds < 2 * 86400 else (86400.0, "a day")
    low, slope, high = (show(rate * unit) for rate in (growth.low, growth.slope, growth.high))
    of = f"{growth.points} {'teeth' if growth.of == 'teeth' else 'stretches of time'}"
    measured = f"by {slope} {each} ({low} to {high} at 95 %, lows of {of})"
    if growth.ruling == "none":
        return f"No leak: its lows do not keep growing; they changed {measured}."
    full = curve.until_full
    when = "" if full is None else f" In {show_time(full)} it reaches its limit."
    least = f" A tooth that takes longer than {show_time(curve.seconds)} would look the same."
    return f"LEAK: its lows grow {measured} and do not come back.{when}{least}"


def _limit(window: Window, memory: Memory, labels: Mapping[str, str]) -> Values | None:
    """Of the series that share all labels which both have; None where one of them is missing."""
    total: Values | None = None
    for names, sign in ((memory.limit, 1.0), (memory.less, -1.0)):
        for name in names:
            fitting = [
                one
                for series, one in window.select(name).items()
                if all(labels.get(key, value) == value for key, value in series.labels)
            ]
            if fitting:
                total = sign * fitting[0] if total is None else total + sign * fitting[0]
            elif sign > 0:
                return None
    return total
