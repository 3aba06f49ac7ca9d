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
from config_gen.serving import Unary
from config_gen.spec import OnnxModel, Spec
from engines.grouping import groups

DELAYS = (0, 1_000_000, 5_000_000)  # ns that a batch may wait for more
MOST_INSTANCES = 4  # of one model on a card
LENGTH_STEP = 4  # tokens: lengths are rounded up to it, so that costs are computed once


@dataclass(frozen=True)
class Candidate:
    """One way to serve, how much of the targets it leaves alone on its device, and the bytes that it takes there."""

    served: Unary
    margin: float
    memory: int


def costs(facts: OnnxFacts, threads: int, factor: float) -> Callable[[Sequence[Arrived]], float]:
    """ns of work of a batch on an instance with so many threads: what each item needs before, and the runs."""
    profile = facts.profile
    prepare = profile.prepare_ms * 1e6 / max(1, threads) if facts.feed == "image" else profile.prepare_ms * 1e6

    @cache
    def run(rows: int, length: int) -> float:
        return profile.ns(rows, length, threads)

    @cache
    def batch(lengths: tuple[int, ...]) -> float:
        if facts.feed != "text" or profile.run_cost is None or len(lengths) == 1:
            computed = run(len(lengths), max(lengths))
        else:
            computed = sum(run(len(group), lengths[group[-1]]) for group in groups(lengths, run))
        return factor * (computed + prepare * len(lengths))

    def cost(requests: Sequence[Arrived]) -> float:
        return batch(tuple(sorted(-(-request.length // LENGTH_STEP) * LENGTH_STEP for request in requests)))

    return cost


def threads_of(cores: int, instances: int) -> int:
    """An instance on the CPU computes with its share of the cores."""
    return max(1, cores // instances)


class UnarySearch:
    """Everything that is fixed about one model; `devices` hold `instances` each."""

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
    ) -> None:
        model = spec.models[name]
        assert isinstance(model, OnnxModel)
        self.model, self.facts = model, facts
        self._name, self._chance, self._devices, self._cores = name, chance, devices, cores
        self._factor, self._around = factor, around
        self._levels = {tier: at + 1 for at, tier in enumerate(spec.tiers)}
        self._policies = tuple(
            QueuePolicy(tier.queue_timeout, "reject", tier.max_queue) for tier in spec.tiers.values()
        )
        self._scale = 1 + spec.headroom

    def candidates(self, instances: int) -> list[Candidate]:
        """All ways with so many instances, best margin first; of equals the simplest."""
        found = [self.tried(batching) for batching in self._batchings(instances)]
        return sorted(found, key=lambda one: (-round(one.margin, 2), _complexity(one.served.batching)))

    def counts(self) -> range:
        """Numbers of instances that may be tried."""
        if self.model.instances is not None:
            return range(self.model.instances, self.model.instances + 1)
        return range(1, (MOST_INSTANCES if self.facts.on_gpu else min(self._cores, MOST_INSTANCES)) + 1)

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

    def tried(self, batching: Batching) -> Candidate:
        """Simulated with the device for itself."""
        served, models = self.served(batching), {self._name: self.model}
        capacity = 1.0 if self.facts.on_gpu else float(self._cores)
        devices = dict.fromkeys(self._devices, (capacity, 0.0))
        seen = serving.run([served], devices, load(models, self._scale))
        return Candidate(served, margin(models, seen), self.facts.profile.memory * batching.instances)

    def _batchings(self, instances: int) -> Iterator[Batching]:
        largest = min(self.model.max_batch_size, self.facts.max_batch_size)
        sizes = [size for at in range(largest.bit_length()) if (size := 2**at) < largest] + [largest]
        delays = DELAYS if self.model.queue_delay is None else (self.model.queue_delay,)
        for size in sizes:
            for delay in delays if size > 1 else delays[:1]:
                plain = Batching(size, instances, delay)
                yield plain
                if any(policy != QueuePolicy() for policy in self._policies):
                    yield replace(plain, levels=self._policies, default_level=1)


def _complexity(batching: Batching) -> tuple[int, int, bool]:
    """Of two that keep as much, the one with fewer knobs, but with the bounds of the file."""
    return batching.delay, batching.max_batch_size, not batching.levels
