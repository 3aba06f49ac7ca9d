"""From raw samples of one model to numbers per traffic class, and from numbers and promises to verdicts.

A refused or failed request is a miss: it counts at infinity in every latency. Must not know sockets or how to print.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from config_gen.percentiles import percentile, samples_needed
from config_gen.sla.quantity import show_duration, show_percentile
from config_gen.sla.spec import Targets
from loadtest.error_kinds import kinds
from loadtest.goodput import is_good
from loadtest.intervals import Interval, blocks, interval
from loadtest.run import Client
from loadtest.samples import Sample

# A client whose P99 lag is over 50 ms, and over a twentieth of the tightest target, measures itself.
LAG_LIMIT, LAG_SHARE = 50_000_000, 20
SHOWN = (Fraction(50, 100), Fraction(95, 100), Fraction(99, 100))
METRICS = ("ttft", "itl", "e2e")

Ruling = Literal["kept", "missed", "none"]


@dataclass(frozen=True)
class Latency:
    """Ascending samples of one metric in ns; infinite where a request was refused or failed.

    `owners` are the blocks of the load that they fell into, None of a simulation: its percentiles have no interval.
    """

    samples: Sequence[float]
    owners: Sequence[int] | None = None
    # Console, page and JSON ask for the same ones.
    _found: dict[Fraction, Interval] = field(default_factory=dict, init=False, repr=False, compare=False)

    def at(self, q: Fraction) -> float | None:
        return percentile(self.samples, q) if self.samples else None

    def interval(self, q: Fraction) -> Interval | None:
        """In which the q percentile lies with 95 % confidence."""
        if not self.samples or self.owners is None:
            return None
        if q not in self._found:
            self._found[q] = interval(self.samples, self.owners, q)
        return self._found[q]


@dataclass(frozen=True)
class ClassSummary:
    """One traffic class over a run. Rates are requests per second; `achieved` counts good answers ended in time.

    Of a model that answers in one piece `latencies` holds E2E only.
    """

    tier: str
    sent: int
    ok: int
    rejected: int
    failed: int
    offered: float
    achieved: float
    output_rate: float  # tokens per second received while the load lasted
    latencies: Mapping[str, Latency]
    errors: Mapping[str, int]  # how often each kind came
    goodput: float | None = None  # requests that met every target of the tier; None where nobody counted


@dataclass(frozen=True)
class Verdict:
    """On one target of one tier; `reason` holds the numbers."""

    tier: str
    metric: str
    q: Fraction
    target: int  # ns
    ruling: Ruling
    reason: str
    interval: Interval | None = None  # of what was measured; None where nothing was


def summarize(
    samples: Sequence[Sample],
    tiers: Sequence[str],
    duration: int,
    tokens: bool = True,
    targets: Mapping[str, Targets] = MappingProxyType({}),
) -> list[ClassSummary]:
    """Numbers of each tier of a model over a load of `duration` ns; `tokens`: it answers token by token."""
    return [
        _summarize(tier, [sample for sample in samples if sample.tier == tier], duration, tokens, targets.get(tier))
        for tier in tiers
    ]


def _summarize(
    tier: str, samples: Sequence[Sample], duration: int, tokens: bool, targets: Targets | None
) -> ClassSummary:
    seconds = duration / 1e9
    good = [sample for sample in samples if sample.outcome == "ok"]
    return ClassSummary(
        tier=tier,
        sent=len(samples),
        ok=len(good),
        rejected=sum(sample.outcome == "rejected" for sample in samples),
        failed=sum(sample.outcome == "failed" for sample in samples),
        offered=len(samples) / seconds,
        achieved=sum(sample.end is not None and sample.end <= duration for sample in good) / seconds,
        output_rate=tokens_in_time(samples, duration) / seconds,
        latencies=latencies(samples, tokens),
        errors=kinds(sample for sample in samples if sample.outcome != "ok"),
        goodput=sum(is_good(sample, targets) for sample in samples) / seconds,
    )


def tokens_in_time(samples: Iterable[Sample], duration: int) -> int:
    """How many tokens came while a load of `duration` ns lasted."""
    return sum(n for sample in samples for time, n in sample.messages if time <= duration)


def latencies(samples: Sequence[Sample], tokens: bool) -> dict[str, Latency]:
    """Every metric of one tier of a model that answers token by token, or of another."""
    sent = sorted(samples, key=lambda sample: (sample.intended, sample.id))
    owned = list(zip(sent, blocks(len(sent)), strict=True))
    found = {"e2e": _latency([(sample.e2e, owner) for sample, owner in owned])}
    if not tokens:
        return found
    first = [(ttft, owner) for sample, owner in owned if (ttft := sample.ttft) is not None]
    gaps = [(gap, owner) for sample, owner in owned for gap in sample.itl()]
    return {"ttft": _latency(first), "itl": _latency(gaps)} | found


def _latency(owned: list[tuple[float, int]]) -> Latency:
    owned.sort()
    return Latency(tuple(value for value, _ in owned), tuple(owner for _, owner in owned))


def lag_reason(client: Client | None, targets: Iterable[int]) -> str | None:
    """Why a run with this client (None: a simulation) gives no verdict on these targets (ns), or None."""
    limit = max(LAG_LIMIT, min(targets, default=0) // LAG_SHARE)
    if client is None or max(client.send_lag, client.loop_lag) <= limit:
        return None
    return (
        "the client itself lagged, the load generator is the bottleneck (P99 of sending "
        f"{show_duration(client.send_lag)}, of its event loop {show_duration(client.loop_lag)}; limit "
        f"{show_duration(limit)}): send less, give it a core or more --workers, or try again when the machine has "
        "nothing else to do"
    )


def judge(
    summaries: Sequence[ClassSummary],
    targets: Mapping[str, Targets],
    traffic: Collection[str],
    client: Client | None,
) -> list[Verdict]:
    """One verdict per declared target of a model, in the order of declaration; `traffic`: the tiers that send."""
    by_tier = {summary.tier: summary for summary in summaries}
    declared = [
        (tier, metric, promised.at, getattr(promised, metric))
        for tier, promised in targets.items()
        for metric in METRICS
        if getattr(promised, metric) is not None
    ]
    lagged = lag_reason(client, [target for *_, target in declared])
    verdicts = []
    for tier, metric, q, target in declared:
        found = None
        if tier not in traffic:
            ruling, reason = _none("no traffic is declared for the tier")
        elif lagged is not None:
            ruling, reason = _none(lagged)
        else:
            found = by_tier[tier].latencies[metric].interval(q)
            ruling, reason = _rule(by_tier[tier].latencies[metric], q, target)
        verdicts.append(Verdict(tier, metric, q, target, ruling, reason, found))
    return verdicts


def _none(reason: str) -> tuple[Ruling, str]:
    return "none", reason


def _rule(latency: Latency, q: Fraction, target: int) -> tuple[Ruling, str]:
    count, needed = len(latency.samples), samples_needed(q)
    if count < needed:
        return _none(f"too few samples: {count}, and {show_percentile(q)} needs {needed}; run longer")
    value = percentile(latency.samples, q)
    if value <= target:
        return "kept", f"{show_duration(value)} of {show_duration(target)}"
    over = sum(sample > target for sample in latency.samples)
    lost = sum(sample == float("inf") for sample in latency.samples)
    told = f"{show_duration(value)}, not {show_duration(target)}: {over} of {count} over"
    return "missed", f"{told}, {lost} of them refused or failed" if lost else told
