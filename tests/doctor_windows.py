"""Synthetic windows of a server: a language model, one that answers in one piece, a GPU, the machine, each as told.

A value is one number for the whole window or an array (T,) over it; counters are given by their rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import erf, exp, inf, log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observe import metrics
from observe.ring import Ring
from observe.series import named
from observe.window import Window, of_samples

Values = NDArray[np.float64]
Level = float | Values
Texts = dict[str, Values]
SECONDS = 120  # of a window, a sample each
Z99 = 2.3263


def level(value: Level, count: int = SECONDS) -> Values:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)).copy()


def risen(rate: Level, count: int = SECONDS) -> Values:
    """A counter that rises by `rate` a second from 1000 on."""
    return 1000 + np.concatenate([[0.0], np.cumsum(level(rate, count))[:-1]])


@lru_cache(maxsize=4096)
def below(value: float, p50: float, p99: float) -> float:
    """Share of a lognormal length of time below `value`."""
    if value == inf:
        return 1.0
    sigma = max(1e-6, log(p99 / p50) / Z99)
    return 0.5 * (1 + erf(log(value / p50) / sigma / sqrt(2)))


def histogram(
    metric: metrics.Metric, rate: Level, p50: Level, p99: Level, count: int = SECONDS, **labels: str
) -> Texts:
    """Buckets, sum and count of what comes `rate` times a second."""
    rates, spreads = level(rate, count), list(zip(level(p50, count), level(p99, count), strict=True))
    found = {}
    for edge in (*metric.buckets, inf):
        shares = np.array([below(edge, *spread) for spread in spreads])
        le = "+Inf" if edge == inf else str(edge)
        found[named(f"{metric.name}_bucket", le=le, **labels)] = risen(rates * shares, count)
    means = np.array([a * exp((log(b / a) / Z99) ** 2 / 2) for a, b in spreads])
    found[named(f"{metric.name}_sum", **labels)] = risen(rates * means, count)
    found[named(f"{metric.name}_count", **labels)] = risen(rates, count)
    return found


@dataclass(frozen=True)
class Tier:
    """`queue` to `e2e` are the median and P99 in seconds."""

    waiting: Level = 0.0
    rate: Level = 2.0
    service: Level = 60.0
    queue: tuple[Level, Level] = (0.006, 0.03)
    ttft: tuple[Level, Level] = (0.08, 0.25)
    itl: tuple[Level, Level] = (0.02, 0.06)
    e2e: tuple[Level, Level] = (0.6, 2.5)


BLIPS = (np.arange(SECONDS) % 25 == 7).astype(float)  # now and then one request waits for the step to end


@dataclass(frozen=True)
class Llm:
    """A healthy one, unless told otherwise: continuous, tiers by weight, room in slots and pages."""

    model: str = "chat"
    tiers: Mapping[str, Tier] = field(
        default_factory=lambda: {"interactive": Tier(BLIPS), "batch": Tier(BLIPS, 0.5, 40)}
    )
    policy: str = "weighted"
    mode: str = "continuous"
    prefix_cache: str = "on"
    max_model_len: int = 4096
    slots: Level = 32
    running: Level = 6.0
    pages: Level = 0.3
    steps: Level = 30.0
    tokens: float = 5.0  # a step
    step: tuple[Level, Level] = (0.02, 0.05)
    preemptions: Level = 0.0
    hits: float = 0.3
    prompts: tuple[Level, Level] = (40.0, 250.0)
    info: bool = True

    def texts(self) -> Texts:
        me = {"model": self.model}
        ended = sum((level(tier.rate) for tier in self.tiers.values()), level(0.0))
        found = {
            named("gapless_running", **me): level(self.running),
            named("gapless_pages_used", **me): 1000 * level(self.pages),
            named("gapless_pages_total", **me): level(1000),
            named("gapless_healthy", **me): level(1),
            named("gapless_steps_total", **me): risen(self.steps),
            named("gapless_output_tokens_total", **me): risen(self.tokens * level(self.steps)),
            named("gapless_preemptions_total", **me): risen(self.preemptions),
            named("gapless_prompt_tokens_total", **me): risen(60 * ended),
            named("gapless_prefix_hit_tokens_total", **me): risen(60 * ended * self.hits),
        }
        if self.info:
            how = {"policy": self.policy, "mode": self.mode, "prefix_cache": self.prefix_cache, "weights": "fp32"}
            how |= {"device": "cpu", "max_model_len": str(self.max_model_len), "max_num_batched_tokens": "256"}
            found |= {
                named("gapless_engine_info", **me, **how): level(1),
                named("gapless_slots", **me): level(self.slots),
            }
        found |= histogram(metrics.STEP, self.steps, *self.step, **me)
        for name, tier in self.tiers.items():
            found |= self._tier(tier, {**me, "tier": name})
        return found

    def _tier(self, tier: Tier, of: dict[str, str]) -> Texts:
        found = {
            named("gapless_waiting", **of): level(tier.waiting),
            named("gapless_service_total", **of): risen(tier.service),
            named("gapless_finished_total", reason="length", **of): risen(tier.rate),
        }
        for metric, spread in (
            (metrics.QUEUE, tier.queue),
            (metrics.TTFT, tier.ttft),
            (metrics.E2E, tier.e2e),
            (metrics.PROMPT_LENGTH, self.prompts),
            (metrics.OUTPUT_LENGTH, (16.0, 90.0)),
        ):
            found |= histogram(metric, tier.rate, *spread, **of)
        return found | histogram(metrics.ITL, 15 * level(tier.rate), *tier.itl, **of)


@dataclass(frozen=True)
class Unary:
    """A healthy one, unless told otherwise. Times in seconds of a request."""

    model: str = "embed"
    rate: Level = 40.0
    batch: Level = 2.0
    pending: Level = 0.0
    queue: Level = 0.002
    computing: Level = 0.008
    moving: Level = 0.0005
    p99: Level | None = None

    def texts(self) -> Texts:
        me = {"model": self.model, "version": "1"}
        rate = level(self.rate)
        found = {
            named("nv_inference_count", **me): risen(rate),
            named("nv_inference_exec_count", **me): risen(rate / level(self.batch)),
            named("nv_inference_request_success", **me): risen(rate),
            named("nv_inference_pending_request_count", **me): level(self.pending),
        }
        spent = {"queue": self.queue, "compute_infer": self.computing, "compute_input": self.moving}
        spent |= {"compute_output": level(self.moving) / 4}
        for part, taken in spent.items():
            found[named(f"nv_inference_{part}_duration_us", **me)] = risen(1e6 * rate * level(taken))
        whole = sum((level(taken) for taken in spent.values()), level(0.0))
        found[named("nv_inference_request_duration_us", **me)] = risen(1e6 * rate * whole)
        if self.p99 is not None:
            found[named("nv_inference_request_summary_us", quantile="0.99", **me)] = 1e6 * level(self.p99)
        return found


@dataclass(frozen=True)
class Card:
    """A GPU as DCGM and the driver tell of it; None is not told. Healthy unless told otherwise."""

    gpu: str = "0"
    utilization: Level | None = 75.0
    tensor: Level | None = 0.6
    sm: Level | None = 0.7
    dram: Level | None = 0.5
    memory: Level = 0.75
    pcie: Level = 3e9
    link: tuple[int, int, int, int] | None = (4, 16, 4, 16)
    held: Mapping[str, Level] = field(default_factory=dict)
    clock: Level = 1900.0
    xid: Level | None = None

    def texts(self) -> Texts:
        me = {"gpu": self.gpu}
        found = {
            named("nvml_memory_used_bytes", **me): 80e9 * level(self.memory),
            named("nvml_memory_total_bytes", **me): level(80e9),
            named("nvml_pcie_bytes_per_second", direction="rx", **me): level(self.pcie),
            named("nvml_pcie_bytes_per_second", direction="tx", **me): 0.1 * level(self.pcie),
            named("nvml_clock_mhz", clock="sm", **me): level(self.clock),
            named("nvml_clock_max_mhz", clock="sm", **me): level(1980),
            named("nvml_power_watts", **me): level(390),
            named("nvml_power_limit_watts", **me): level(400),
            named("nvml_power_default_limit_watts", **me): level(400),
            named("nvml_persistence_mode", **me): level(1),
            named("nvml_driver_info", driver="570.86.15", cuda="12.8", **me): level(1),
        }
        for reason in ("sw_power_cap", "hw_thermal", "sw_thermal", "gpu_idle"):
            found[named("nvml_clocks_held_down", reason=reason, **me)] = level(self.held.get(reason, 0.0))
        if self.link is not None:
            for (what, of), value in zip(
                [(what, of) for of in ("now", "most") for what in ("generation", "lanes")], self.link, strict=True
            ):
                found[named(f"nvml_pcie_{what}", of=of, **me)] = level(value)
        told = {"nvml_utilization_percent": self.utilization, "DCGM_FI_DEV_XID_ERRORS": self.xid}
        told |= {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": self.tensor, "DCGM_FI_PROF_SM_ACTIVE": self.sm}
        told |= {"DCGM_FI_PROF_DRAM_ACTIVE": self.dram}
        return found | {named(name, **me): level(value) for name, value in told.items() if value is not None}


@dataclass(frozen=True)
class Host:
    cpu: Level = 50.0
    cores: float = 0.5  # that the process of `model` uses
    model: str = "chat"

    def texts(self) -> Texts:
        spent = named("host_process_cpu_seconds_total", process="model", model=self.model, pid="7")
        found = {named("host_cpu_percent", core=core): level(self.cpu) for core in ("0", "1")}
        return found | {spent: risen(self.cores), named("observe_up", source="host"): level(1)}


Part = Llm | Unary | Card | Host


def texts(*parts: Part) -> Texts:
    found: Texts = {}
    for part in parts:
        found |= part.texts()
    return found


def samples(series: Texts, interval: int = 10**9, start: int = 10**18) -> list[tuple[int, dict[str, float]]]:
    count = len(next(iter(series.values())))
    return [
        (
            start + at * interval,
            {text: float(values[at]) for text, values in series.items() if not np.isnan(values[at])},
        )
        for at in range(count)
    ]


def window(*parts: Part) -> Window:
    return of_samples(samples(texts(*parts)))


def written(folder: Path, series: Texts) -> Path:
    """As `gapless observe` writes it."""
    with Ring(folder, 2**24) as ring:
        for now, values in samples(series):
            ring.append(now, values)
    return folder
