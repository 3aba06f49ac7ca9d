"""Facts of GPUs, from the driver (NVML), a DCGM exporter, and Triton where neither is there; and of the machine.

Must not know what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from observe.doctor.machine import CardFacts, Crowd, Fault, HostFacts, Link, Pcie, Power, Tensor
from observe.doctor.spans import Span, mean, most, share
from observe.window import Mask, Values, newest

BUSY = 0.8  # utilization of a GPU that does something nearly all the time
NEAR = 0.8  # share of what a link carries that is near its limit
BOTTLENECK = 40e9  # bytes a second over PCIe, beyond which it was reported to hold GPUs up
# Bytes a second of one lane, by generation.
LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}
DCGM, PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
# The best that tells how much of a GPU computes comes first; others count a kernel that fills a corner of it as well.
COMPUTE = (f"{PROF}SM_ACTIVE", f"{PROF}GR_ENGINE_ACTIVE")


def gpus(span: Span) -> list[str]:
    return span.labels("gpu", "nvml_utilization_percent", "nvml_memory_used_bytes", *COMPUTE, *_TENSOR_OR_MEMORY)


_TENSOR_OR_MEMORY = (
    f"{PROF}PIPE_TENSOR_ACTIVE",
    f"{PROF}DRAM_ACTIVE",
    f"{DCGM}GPU_UTIL",
    f"{DCGM}FB_USED",
    f"{DCGM}XID_ERRORS",
)


def triton_gpus(span: Span) -> list[str]:
    """By UUID, as Triton tells of them."""
    return span.labels("gpu_uuid", "nv_gpu_utilization", "nv_gpu_memory_used_bytes")


def compute(span: Span, gpu: str) -> tuple[Values, str]:
    """Share of the GPU that computes, at each sample, and the series that tells."""
    for name in COMPUTE:
        if not np.isnan(found := _level(span, name, gpu=gpu)).all():
            return found, name
    return _utilization(span, gpu)


def used(span: Span) -> float | None:
    """Share of the compute that is used, of the busiest GPU; of all cores where there is none."""
    cards = [mean(compute(span, gpu)[0]) for gpu in gpus(span)]
    cards += [mean(_level(span, "nv_gpu_utilization", gpu_uuid=gpu)) for gpu in triton_gpus(span)]
    return max((it for it in cards if it is not None), default=_cpu(span))


def card_facts(span: Span, gpu: str, crowd: Mask | None) -> CardFacts:
    """`crowd`: at which samples requests waited anywhere; None where nobody told."""
    found, source = compute(span, gpu)
    activity, _ = _utilization(span, gpu)
    activity = found if np.isnan(activity).all() else activity
    busy: Mask = activity >= BUSY
    driver = newest(span.select("nvml_driver_info", gpu=gpu))
    return CardFacts(
        gpu=f"GPU {gpu}",
        seconds=span.seconds,
        compute=mean(found),
        source=source,
        utilization=mean(activity),
        busy_share=share(busy, ~np.isnan(activity)),
        busy_seconds=_seconds(span, busy),
        work=_work(span, gpu, busy),
        pcie=_pcie(span, gpu, busy),
        memory=_memory(span, gpu),
        held=_held(span, gpu, busy),
        clock=_clock(span, gpu, busy),
        power=_power(span, gpu),
        driver=driver.label("driver") if driver else "",
        cuda=driver.label("cuda") if driver else "",
        fault=_fault(span, gpu),
        crowd=_crowd(found, crowd),
    )


def triton_card_facts(span: Span, uuid: str, crowd: Mask | None) -> CardFacts:
    """Of a GPU that only Triton tells of: the same series under the driver's names."""
    renamed = {"nv_gpu_utilization": 100.0, "nv_gpu_memory_used_bytes": 1.0, "nv_gpu_memory_total_bytes": 1.0}
    named = {
        name.replace("nv_gpu_utilization", "nvml_utilization_percent").replace("nv_gpu", "nvml"): [
            (type(series)(name, (("gpu", uuid),)), factor * values)
            for series, values in span.select(name, gpu_uuid=uuid)
        ]
        for name, factor in renamed.items()
    }
    return card_facts(Span(span.times, named, span.page), uuid, crowd)


def host_facts(span: Span) -> HostFacts:
    spent = "host_process_cpu_seconds_total"
    rates = {model: span.rate(spent, model=model) for model in span.labels("model", spent) if model}
    return HostFacts(
        cpu=_cpu(span),
        processes={model: rate for model, rate in rates.items() if rate is not None},
        pinned=most(span.gauge("nv_pinned_memory_pool_used_bytes")),
    )


def _cpu(span: Span) -> float | None:
    found = mean(_across(span, "host_cpu_percent", np.nanmean))
    return None if found is None else found / 100


def _across(span: Span, name: str, how: Callable[..., Values], **labels: str) -> Values:
    """Mean, or another, of several series at each sample: MIG instances, cores."""
    found = np.array([values for _, values in span.select(name, **labels)]).reshape(-1, len(span.times))
    there = ~np.isnan(found).all(axis=0) if len(found) else np.zeros(len(span.times), np.bool_)
    together = np.full(len(span.times), np.nan)
    if there.any():
        together[there] = how(found[:, there], axis=0)
    return together


def _level(span: Span, name: str, **labels: str) -> Values:
    return _across(span, name, np.nanmean, **labels)


def _utilization(span: Span, gpu: str) -> tuple[Values, str]:
    for name in ("nvml_utilization_percent", f"{DCGM}GPU_UTIL"):
        if not np.isnan(found := _level(span, name, gpu=gpu)).all():
            return found / 100, name
    return _level(span, f"{PROF}GR_ENGINE_ACTIVE", gpu=gpu), f"{PROF}GR_ENGINE_ACTIVE"


def _seconds(span: Span, true: Mask) -> float:
    return float(np.nansum(span.between[true[1:]])) if len(true) else 0.0


def _work(span: Span, gpu: str, busy: Mask) -> Tensor:
    tensor, sm, dram = (_level(span, f"{PROF}{it}_ACTIVE", gpu=gpu) for it in ("PIPE_TENSOR", "SM", "DRAM"))
    late = np.arange(len(busy)) >= len(busy) // 2
    return Tensor(mean(tensor), mean(tensor[busy]), mean(tensor[busy & late]), mean(sm[busy]), mean(dram[busy]))


def _power(span: Span, gpu: str) -> Power:
    watts, limit, default = (span.level(f"nvml_power_{it}watts", gpu=gpu) for it in ("", "limit_", "default_limit_"))
    kept = span.level("nvml_persistence_mode", gpu=gpu)
    hottest = most(span.gauge("nvml_temperature_celsius", gpu=gpu))
    return Power(watts, limit, default, hottest, None if kept is None else kept > 0.5)


def _fault(span: Span, gpu: str) -> Fault | None:
    faults = _across(span, f"{DCGM}XID_ERRORS", np.nanmax, gpu=gpu)
    seen = faults[~np.isnan(faults)]
    return Fault(float(seen[-1]), bool(seen[-1] != seen[0])) if len(seen) and seen[-1] else None


def _memory(span: Span, gpu: str) -> float | None:
    """Share in use of what can be used."""
    taken = span.gauge("nvml_memory_used_bytes", gpu=gpu)
    total = span.gauge("nvml_memory_total_bytes", gpu=gpu) - np.nan_to_num(
        span.gauge("nvml_memory_reserved_bytes", gpu=gpu)
    )
    if np.isnan(taken).all():
        taken = _across(span, f"{DCGM}FB_USED", np.nansum, gpu=gpu) * 2**20
        total = taken + _across(span, f"{DCGM}FB_FREE", np.nansum, gpu=gpu) * 2**20
    part = np.divide(taken, total, out=np.full(len(taken), np.nan), where=total > 0)
    return mean(part)


def _pcie(span: Span, gpu: str, busy: Mask) -> Pcie:
    link = _link(span, gpu, busy)
    carries = None if link is None else LANE.get(int(link.generation), np.inf) * link.lanes
    limit = BOTTLENECK if carries is None else NEAR * carries
    ways = [span.gauge("nvml_pcie_bytes_per_second", gpu=gpu, direction=way) for way in ("rx", "tx")]
    if np.isnan(ways).all():
        ways = [span.gauge(f"{PROF}PCIE_{way}_BYTES", gpu=gpu) for way in ("RX", "TX")]
    moved = np.fmax(ways[0], ways[1])
    return Pcie(mean(moved), share(moved >= limit, ~np.isnan(moved)), link, carries)


def _link(span: Span, gpu: str, busy: Mask) -> Link | None:
    """As it was while busy: idle, a link is slowed down to save power."""
    found = {
        (what, of): span.gauge(f"nvml_pcie_{what}", gpu=gpu, of=of)
        for what in ("generation", "lanes")
        for of in ("now", "most")
    }
    best = {key: most(values[busy] if busy.any() and key[1] == "now" else values) for key, values in found.items()}
    now, lanes = best["generation", "now"], best["lanes", "now"]
    most_now, most_lanes = best["generation", "most"], best["lanes", "most"]
    if now is None or lanes is None or most_now is None or most_lanes is None:
        return None
    return Link(now, lanes, most_now, most_lanes)


def _held(span: Span, gpu: str, busy: Mask) -> Mapping[str, float]:
    """Share of busy samples, by reason."""
    found = {}
    for series, values in span.select("nvml_clocks_held_down", gpu=gpu):
        part = share(values > 0.5, busy & ~np.isnan(values))
        if part is not None:
            found[series.label("reason")] = part
    return found


def _clock(span: Span, gpu: str, busy: Mask) -> float | None:
    """Share of the highest clock that there was while busy and held down; of what the GPU can do, where it tells."""
    clock, highest = (span.gauge(name, gpu=gpu, clock="sm") for name in ("nvml_clock_mhz", "nvml_clock_max_mhz"))
    top = most(highest) or most(clock)
    reasons = [
        values > 0.5
        for series, values in span.select("nvml_clocks_held_down", gpu=gpu)
        if series.label("reason") != "gpu_idle"
    ]
    down = busy & np.any(reasons, axis=0) if reasons else busy
    level = mean(clock[down])
    return None if level is None or not top else level / top


def _crowd(found: Values, crowd: Mask | None) -> Crowd:
    if crowd is None:
        return Crowd(None)
    return Crowd(share(crowd, ~np.isnan(found)), mean(found[crowd]))
