"""`simulate --rounds`: the reported case, configuration by configuration, beside what was reported.

Must not know how a step's time is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import inf
from typing import Any

from rich.table import Table

from config_gen.percentiles import percentile
from decode.config import EngineConfig
from decode.executors.cost_model import Law
from decode.executors.gpu_cost import GpuMemory
from gapless import simulation
from gapless.reported_case import ROUNDS, Round

FLOOD = 8.0  # times the declared rates: more than any round serves
MINUTE = 60 * 10**9  # ns
P50, P99 = Fraction(50, 100), Fraction(99, 100)


@dataclass(frozen=True)
class Result:
    """What a round gave: requests/s served under a flood; at the declared rates, seconds and shares."""

    name: str
    served: float
    p50: float
    p99: float
    interactive_p99: float
    background_tokens: float  # per second
    busy: float
    pages_peak: float
    memory_peak: float | None  # of the GPU, with weights and what the runtime keeps; None = of a law nobody knows
    reported: tuple[str, str, str]


def run(
    load: simulation.Load, config: EngineConfig, law: Law, memory: GpuMemory | None, seen: Callable[[float], None]
) -> list[Result]:
    """Simulate every round under a flood and at the declared rates."""
    results = []
    for at, one in enumerate(ROUNDS):
        limits = replace(config, max_num_batched_tokens=2048, **one.changes)
        flood = simulation.run(
            replace(load, duration=min(load.duration, 2 * MINUTE), scale=FLOOD * load.scale), limits, law
        )
        usual = simulation.run(load, limits, law)
        peak = usual.outcome.pages_peak
        taken = None if memory is None else _taken(memory, peak * limits.num_pages * limits.page_size)
        results.append(_result(one, flood, usual, taken))
        seen((at + 1) / len(ROUNDS))
    return results


def _taken(memory: GpuMemory, tokens: float) -> float:
    """Share of a GPU's memory that is in use with KV of so many tokens."""
    return (memory.weights + memory.reserved + tokens * memory.kv_per_token) / memory.total


def _result(one: Round, flood: simulation.Simulated, usual: simulation.Simulated, memory: float | None) -> Result:
    [model], [flooded] = usual.report.models, flood.report.models
    classes = model.classes
    latencies = sorted(value for c in classes for value in c.latencies["e2e"].samples)
    first = classes[0].latencies["e2e"].at(P99)
    return Result(
        name=one.name,
        served=sum(c.achieved for c in flooded.classes),
        p50=percentile(latencies, P50) / 1e9,
        p99=percentile(latencies, P99) / 1e9,
        interactive_p99=(first or 0.0) / 1e9,
        background_tokens=classes[-1].output_rate,
        busy=usual.outcome.utilization,
        pages_peak=usual.outcome.pages_peak,
        memory_peak=memory,
        reported=(one.served, one.p99, one.other),
    )


def table(results: Sequence[Result]) -> Table:
    shown = Table(title="The reported case: simulated, and as it was told", box=None)
    names = (
        "round",
        "served/s",
        "P50",
        "P99",
        "P99 int.",
        "batch tok/s",
        "busy",
        "pages",
        "memory",
        "told: served, P99, more",
    )
    for name in names:
        shown.add_column(name, justify="left" if name in (names[0], names[-1]) else "right")
    for row in results:
        numbers = [
            f"{row.p50:.2f} s",
            f"{row.p99:.2f} s",
            f"{row.interactive_p99:.2f} s",
            f"{row.background_tokens:.0f}",
        ]
        memory = "-" if row.memory_peak is None else f"{row.memory_peak:.0%}"
        shares = [f"{row.busy:.0%}", f"{row.pages_peak:.0%}", memory]
        shown.add_row(row.name, f"{row.served:.1f}", *numbers, *shares, "; ".join(row.reported))
    return shown


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """An infinite latency (requests that were refused) is null."""
    return [{name: None if value == inf else value for name, value in asdict(row).items()} for row in results]
