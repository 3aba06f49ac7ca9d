"""Ways to serve one batchable model: largest batch, delay, instances, priority levels; each tried on its device alone.

Must not know other models or cards; see planner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from config_gen import serving
from config_gen.batcher import Arrived
from config_gen.batching import Batching, QueuePolicy
from config_gen.facts import OnnxFacts
from config_gen.promises import load, margin
from config_gen.serving import Capacity, Unary
from config_gen.spec import OnnxModel, Spec
from engines.grouping import groups

DELAYS = (1_000_000, 5_000_000)  # ns that a batch may wait for more
FARTHEST = 4096  # times the rates with headroom that are tried, by doubling
VARIED = 2  # of the largest batches, for which delays and bounds are tried
MOST_INSTANCES = 4  # of one model on a card
LENGTH_STEP = 4  # tokens: lengths are rounded up to it, so that costs are computed once


@dataclass(frozen=True)
class Candidate:
    """One way to serve, how much of the targets it leaves alone at its `reach`, and the bytes that it takes."""

    served: Unary
    margin: float
    memory: int
    reach: int = 0  # times the rates with headroom at which it still holds alone; 0: not even at those


def costs(facts: OnnxFacts, threads: int, factor: float) -> Callable[[Sequence[Arrived]], float]:
    """ns of work of a batch on an instance with so many threads: what each item needs before, and the runs."""
    profile = facts.profile
    alone, batched = profile.prepare.p50 * 1e6, profile.prepare.batched * 1e6

    @cache
    def run(rows: int, length: int) -> float:
        return profile.ns(rows, length, threads)

    @cache
    def batch(lengths: tuple[int, ...]) -> float:
        if facts.feed != "text" or profile.run_cost is None or len(lengths) == 1:
            computed = run(len(lengths), max(lengths))
        else:
            computed = sum(run(len(group), lengths[group[-1]]) for group in groups(lengths, run))
        return factor * (computed + (alone if len(lengths) == 1 else batched * len(lengths)))

    def cost(requests: Sequence[Arrived]) -> float:
        return batch(tuple(sorted(-(-request.length // LENGTH_STEP) * LENGTH_STEP for request in requests)))

    return cost


def threads_of(cores: int, instances: int) -> int:
    """An instance on the CPU computes with its share of the cores."""
    return max(1, cores // instances)


class UnarySearch:
    """Everything that is fixed about one model; `devices` hold `instances` each, with `room` bytes, 0: any number."""

    def __init__(
        self,
        spec: Spec,
        name: str,
        facts: OnnxFacts,
        chance: str,
        devices: tuple[str, ...],
        cores: int,
        factor: float = 1.0,
        around: int = 0,
        room: int = 0,
    ) -> None:
        model = spec.models[name]
        assert isinstance(model, OnnxModel)
        self.model, self.facts = model, facts
        self._name, self._chance, self._devices, self._cores = name, chance, devices, cores
        self._factor, self._around, self._room = factor, around, room
        self._levels = {tier: at + 1 for at, tier in enumerate(spec.tiers)}
        self._policies = tuple(
            QueuePolicy(tier.queue_timeout, "reject", tier.max_queue) for tier in spec.tiers.values()
        )
        self._scale = 1 + spec.headroom

    def candidates(self, instances: int) -> list[Candidate]:
        """All ways with so many instances: those that hold at the highest multiple of the rates first, best first.

        Every largest batch is tried at the rates with headroom, those that hold at twice that, and so on; what else may
        be set is tried for the best of them.
        """
        delay = self.model.queue_delay or 0
        found = [self._farthest(Batching(size, instances, delay)) for size in self._sizes()]
        for one in sorted(found, key=_worth)[:VARIED]:
            plain = one.served.batching
            found += [self.tried(batching, max(1, one.reach)) for batching in self._variants(plain)]
        return sorted(found, key=_worth)

    def _farthest(self, batching: Batching) -> Candidate:
        """At the highest power of two times the rates at which it holds."""
        best = following = self.tried(batching, 1)
        while following.reach and following.reach < FARTHEST:
            best, following = following, self.tried(batching, 2 * following.reach)
        return following if following.reach else best

    def counts(self) -> range:
        """Numbers of instances that may be tried."""
        if self.model.instances is not None:
            return range(self.model.instances, self.model.instances + 1)
        most = MOST_INSTANCES if self.facts.on_gpu else min(self._cores, MOST_INSTANCES)
        if self._room and self.facts.profile.memory:
            most = min(most, self._room // self.facts.profile.memory)
        return range(1, max(1, most) + 1)

    def served(self, batching: Batching) -> Unary:
        threads = 0 if self.facts.on_gpu else threads_of(self._cores, batching.instances)
        cached = self.model.response_cache
        return Unary(
            self._name,
            self.model,
            self._chance,
            self._devices,
            1.0 if self.facts.on_gpu else float(threads),
            batching,
            costs(self.facts, threads, self._factor),
            self._levels,
            self._around,
            cached.repeats if cached else 0.0,
        )

    def tried(self, batching: Batching, reach: int) -> Candidate:
        """Simulated with the device for itself at `reach` times the rates with headroom."""
        served, models = self.served(batching), {self._name: self.model}
        capacity = 1.0 if self.facts.on_gpu else float(self._cores)
        devices = dict.fromkeys(self._devices, Capacity(capacity))
        sent = load(models, reach * self._scale)
        left = margin(models, serving.run([served], devices, sent), sent.duration)
        return Candidate(served, left, self.facts.profile.memory * batching.instances, reach if left >= 0 else 0)

    def _sizes(self) -> list[int]:
        """1, 2, 4, … and the largest that is allowed."""
        largest = min(self.model.max_batch_size, self.facts.max_batch_size)
        return [size for at in range(largest.bit_length()) if (size := 2**at) < largest] + [largest]

    def _variants(self, plain: Batching) -> Iterator[Batching]:
        """The same with a delay, with one that half a batch ends, and with the file's bounds."""
        if self.model.queue_delay is None and plain.max_batch_size > 1:
            yield from (replace(plain, delay=delay) for delay in DELAYS)
            half = plain.max_batch_size // 2
            yield replace(plain, delay=DELAYS[-1], preferred=tuple(sorted({half, plain.max_batch_size})))
        if self._may_have_levels(plain):
            yield replace(plain, levels=self._policies, default_level=1)

    def _may_have_levels(self, plain: Batching) -> bool:
        """Whether the file has bounds, and Triton's batcher does with them what it should.

        With one instance it may sleep beside it while it is idle (see Batcher and the log); with a delay and a timeout
        it counts waiting instances wrong, and slows down for as long as it runs (server issue 8870).
        """
        wanted = any(policy != QueuePolicy() for policy in self._policies)
        leaks = plain.delay > 0 and any(policy.timeout for policy in self._policies)
        return wanted and plain.instances > 1 and not leaks


def _worth(one: Candidate) -> tuple[int, float, int, bool, int]:
    """Of two that keep as much the one with fewer knobs, but with the bounds of the file."""
    batching = one.served.batching
    return -one.reach, -round(one.margin, 2), batching.delay, not batching.levels, batching.max_batch_size
