"""Ways to serve one batchable model: largest batch, delay, instances, priority levels; each tried on its device alone.

Must not know other models or cards; see planner.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from config_gen.batching import Batching, QueuePolicy
from config_gen.facts import Correction, OnnxFacts
from config_gen.planning.placing import MOST_SHARING, Seat
from config_gen.planning.promises import load, margin
from config_gen.simulation import joint
from config_gen.simulation.batcher import Arrived
from config_gen.simulation.serving import FRONT, HANDOVER, HOST, WAKING, Capacity, Unary
from config_gen.sla.arrivals import chance
from config_gen.sla.spec import OnnxModel, Spec
from engines.grouping import groups

DELAYS = (1_000_000, 5_000_000)  # ns that a batch may wait for more
REACHES = (1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 256, 1024)  # times the rates with headroom that are tried
ALIKE = 20  # parts of a target: what differs by less is alike
VARIED = 2  # of the largest batches, for which delays and bounds are tried
MOST_INSTANCES = 4  # of one model on a card
LENGTH_STEP = 4  # tokens: lengths are rounded up to it, so that costs are computed once


@dataclass(frozen=True)
class Candidate:
    """One way to serve, how much of the targets it leaves alone at its `reach`, and the bytes that it takes."""

    served: Unary
    margin: float
    memory: int
    reach: float = 0  # times the rates with headroom at which it still holds alone; 0: not even at those


def preparing(facts: OnnxFacts, cores: int, factor: float) -> Callable[[Sequence[Arrived]], tuple[float, float]]:
    """ns that a batch is handed over and prepared for before it is computed, and on how many of the `cores`: texts one
    after another, pictures beside each other.

    What an item takes of a full batch is less than alone, and a batch never takes less than one item.
    """
    one, each = facts.profile.prepare.p50 * 1e6, facts.profile.prepare.batched * 1e6
    beside = cores if facts.feed == "image" else 1

    def cost(requests: Sequence[Arrived]) -> tuple[float, float]:
        count = len(requests)
        return HANDOVER + factor * max(one, each * count), min(count, beside)

    return cost


def costs(facts: OnnxFacts, threads: int, factor: float) -> Callable[[Sequence[Arrived]], float]:
    """ns of work of a batch on an instance with so many threads.

    As the runner computes it: texts in groups of about one length, by the cost that the build fitted, and rows and
    lengths padded to the shapes of an engine that has some.
    """
    profile = facts.profile
    fixed, per_token = profile.run_cost or (0.0, 0.0)

    @cache
    def run(rows: int, length: int) -> float:
        return profile.ns(_padded(rows, facts.batch_buckets), _padded(length, facts.length_buckets), threads)

    def fitted(rows: int, longest: int) -> float:
        return fixed + per_token * _padded(rows, facts.batch_buckets) * _padded(longest, facts.length_buckets)

    @cache
    def batch(lengths: tuple[int, ...]) -> float:
        if facts.feed != "text" or profile.run_cost is None or len(lengths) == 1:
            computed = run(len(lengths), max(lengths))
        else:
            computed = sum(run(len(group), lengths[group[-1]]) for group in groups(lengths, fitted))
        return factor * computed

    def cost(requests: Sequence[Arrived]) -> float:
        return batch(tuple(sorted(-(-request.length // LENGTH_STEP) * LENGTH_STEP for request in requests)))

    return cost


def _padded(size: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `size`; itself where there are none."""
    at = bisect_left(buckets, size)
    return buckets[at] if at < len(buckets) else size


def threads_of(cores: int, instances: int) -> int:
    """An instance on the CPU computes with its share of the cores."""
    return max(1, cores // instances)


class UnarySearch:
    """Everything that is fixed about one model, on so many `places` alike: cards, or the host once.

    `room` in bytes of each; `limited`: executions on a card that it shares are. What it serves names the places by
    number; see settling.on.
    """

    def __init__(self, spec: Spec, name: str, facts: OnnxFacts, seat: Seat, fixed: Correction, cores: int) -> None:
        model = spec.models[name]
        assert isinstance(model, OnnxModel)
        self.model, self.facts = model, facts
        self._name, self._chance, self._seat, self._cores = name, chance(spec.models, name), seat, cores
        self._fixed = fixed
        self._levels = {tier: at + 1 for at, tier in enumerate(spec.tiers)}
        self._policies = tuple(
            QueuePolicy(tier.queue_timeout, "reject", tier.max_queue) for tier in spec.tiers.values()
        )
        self._scale = 1 + spec.headroom
        self._found: dict[int, list[Candidate]] = {}

    def candidates(self, instances: int) -> list[Candidate]:
        """All ways with so many instances: those that hold at the highest multiple of the rates first, best first.

        Every largest batch is tried at the rates with headroom, those that hold at more, and so on; what else may be
        set is tried for the best of them.
        """
        if instances not in self._found:
            delay = self.model.queue_delay or 0
            found = [self._farthest(Batching(size, instances, delay)) for size in self._sizes()]
            for one in sorted(found, key=_worth)[:VARIED]:
                plain = one.served.batching
                found += [self.tried(batching, max(1, one.reach)) for batching in self._variants(plain)]
            self._found[instances] = sorted(found, key=_worth)
        return self._found[instances]

    def _farthest(self, batching: Batching) -> Candidate:
        """At the highest of REACHES at which it holds."""
        best = following = self.tried(batching, 1)
        for reach in REACHES:
            if not following.reach:
                return best
            best, following = following, self.tried(batching, reach)
        return following if following.reach else best

    def counts(self) -> Sequence[int]:
        """Numbers of instances that may be tried; the first fits where anything does."""
        if self.model.instances is not None:
            return (self.model.instances,)
        most = MOST_INSTANCES if self.facts.on_gpu else min(self._cores, MOST_INSTANCES)
        return [count for count in range(1, most + 1) if count == 1 or count * self.facts.memory <= self._seat.room]

    def served(self, batching: Batching) -> Unary:
        """This way, on the places by their numbers."""
        threads = 0 if self.facts.on_gpu else threads_of(self._cores, batching.instances)
        cached = self.model.response_cache
        return Unary(
            self._name,
            self.model,
            self._chance,
            self._seat.places,
            1.0 if self.facts.on_gpu else float(threads),
            batching,
            preparing(self.facts, self._cores, self._fixed.factor),
            costs(self.facts, threads, self._fixed.factor),
            self._levels,
            WAKING + self._fixed.around,
            cached.repeats if cached else 0.0,
            self._seat.limited,
            FRONT,
            self.facts.profile.cold,
        )

    def tried(self, batching: Batching, reach: float) -> Candidate:
        """Simulated with the device for itself at `reach` times the rates with headroom."""
        served, models = self.served(batching), {self._name: self.model}
        capacity = Capacity(1.0, most=MOST_SHARING) if self.facts.on_gpu else Capacity(float(self._cores))
        sent = load(models, reach * self._scale)
        devices = {HOST: Capacity(float(self._cores)), **dict.fromkeys(self._seat.places, capacity)}
        seen = joint.run([served], devices, sent)
        left = margin(models, seen, sent.duration)
        return Candidate(served, left, self.facts.memory * batching.instances, reach if left >= 0 else 0)

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
        return wanted and plain.instances * len(self._seat.places) > 1 and not leaks


def _worth(one: Candidate) -> tuple[float, int, float, int, bool, int]:
    """Of two that keep about as much the one with fewer knobs, but with the bounds of the file."""
    batching = one.served.batching
    about = round(one.margin * ALIKE) if one.margin >= 0 else 0
    lost = -min(one.margin, 0.0)
    return -one.reach, -about, lost, batching.delay, not batching.levels, batching.max_batch_size
