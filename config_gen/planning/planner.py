"""Places of models and their settings: as few cards as keep every promise, replicas where one does not.

Wires placing, the searches of single models, and their simulation together. Must not know files or the server; what
becomes of an attempt is plans'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from config_gen.facts import Correction, Facts, LlmFacts
from config_gen.plan import Expectation, Prediction
from config_gen.planning.llm_search import LlmSearch
from config_gen.planning.needs import need
from config_gen.planning.placing import MOST_SHARING, USABLE, DoesNotFitError, Need, Seat, place
from config_gen.planning.predicting import expect, predict
from config_gen.planning.settling import Choice, Group, Search, Settled
from config_gen.planning.unary_search import UnarySearch
from config_gen.planning.wishes import PlanError, check
from config_gen.simulation.serving import HOST, Capacity
from config_gen.sla.spec import Spec

SWITCH = 4_000_000.0  # ns: processes that share a card by time slices pay 3 to 5 ms to change context (field report)
Tell = Callable[[str, float], None]


def quiet(what: str, share: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Attempt:
    """Every model placed and set, and what each promise gets."""

    cards: int
    seats: Mapping[str, tuple[int, ...]]
    choices: Mapping[str, Choice]
    predictions: tuple[Prediction, ...]
    expected: tuple[Expectation, ...]
    executing: Mapping[str, float]
    groups: tuple[Group, ...] = field(repr=False)
    late: float = 0.0  # share of requests beyond those that may be late, of the promise that misses most

    @property
    def held(self) -> bool:
        return all(found.held for found in self.predictions)

    @property
    def worth(self) -> tuple[bool, float, float]:
        """Of two attempts the better has more: holds, fewer late, more of the tightest target left."""
        left = min((1 - max(one.predicted, one.stressed) / one.target for one in self.predictions), default=1.0)
        return self.held, -self.late, left


class Planner:
    """One file on its hardware."""

    def __init__(
        self, spec: Spec, facts: Mapping[str, Facts], corrections: Mapping[str, Correction], tell: Tell
    ) -> None:
        """Raises PlanError for what cannot be."""
        self.spec, self.facts, self._tell, self._corrections = spec, facts, tell, corrections
        self.cores = spec.hardware.cores or max((_cores(known) for known in facts.values()), default=1) or 1
        self.count = sum(gpu.count for gpu in spec.hardware.gpus)
        self.card = min((gpu.bytes for gpu in spec.hardware.gpus), default=0)
        self.host = spec.hardware.memory or max((_host_memory(known) for known in facts.values()), default=0)
        check(spec, facts, self.cores, self.card, self.host)
        self._on_cards = [name for name in spec.models if facts[name].on_gpu]
        self._known: dict[tuple[str, Seat], Search] = {}

    def attempts(self, fewest: int = 1) -> Iterator[Attempt]:
        """On as few cards as possible first, until one holds; each is the best on its number of cards.

        Raises PlanError when the models do not fit on all cards.
        """
        problem: DoesNotFitError | None = None
        found = False
        for cards in range(fewest, self.count + 1) if self._on_cards else (0,):
            try:
                attempt = self._on(cards)
            except DoesNotFitError as error:
                problem = error
                continue
            found = True
            yield attempt
            if attempt.held:
                return
        if not found:
            raise PlanError(str(problem))

    def _on(self, cards: int) -> Attempt:
        """The best on so many cards: replicas are added to the model that misses most. Raises DoesNotFitError."""
        replicas = dict.fromkeys(self._on_cards, 1)
        best = self._placed(cards, replicas)
        full: set[str] = set()
        while not best.held:
            missing = {one.model: one.margin for one in sorted(best.predictions, key=lambda one: -one.margin)}
            held = {one.model for one in best.predictions} - {one.model for one in best.predictions if not one.held}
            more = [n for n in missing if n not in held | full and replicas.get(n, cards) < cards]
            if not more:
                break
            name = min(more, key=lambda one: (missing[one], one))
            try:
                found = self._placed(cards, replicas | {name: replicas[name] + 1})
            except DoesNotFitError:
                full.add(name)
                continue
            replicas[name] += 1
            best = max(best, found, key=lambda one: one.worth)
        return best

    def _placed(self, cards: int, replicas: Mapping[str, int]) -> Attempt:
        apart = self.spec.hardware.sharing == "in-process"
        needs = {name: need(self.spec, self.facts, name) for name in self._on_cards}
        seats: dict[str, tuple[int, ...]] = dict.fromkeys(self.spec.models, ())
        seats |= place(needs, replicas, cards, self.card, apart) if needs else {}
        at = {name: tuple(f"card {card}" for card in found) or (HOST,) for name, found in seats.items()}
        searches = {name: self._search(name, seats, needs) for name in seats}
        switch = SWITCH if self.spec.hardware.sharing == "time-slice" else 0.0
        devices = {HOST: Capacity(float(self.cores))}
        devices |= {f"card {card}": Capacity(1.0, switch, MOST_SHARING) for card in range(cards)}
        settled: list[tuple[Group, Settled]] = []
        for names in _groups(seats):
            self._tell(f"planning {', '.join(names)}", len(settled) / len(seats))
            group = Group({name: searches[name] for name in names}, at, devices, 1 + self.spec.headroom)
            settled.append((group, group.settle()))
        self._fits_host({name: choice for _, found in settled for name, choice in found.choices.items()}, seats)
        return self._told(cards, seats, settled)

    def _told(
        self, cards: int, seats: Mapping[str, tuple[int, ...]], settled: Sequence[tuple[Group, Settled]]
    ) -> Attempt:
        choices, predictions = dict[str, Choice](), list[Prediction]()
        expected, executing = list[Expectation](), dict[str, float]()
        for group, found in settled:
            declared = group.observe(found.choices, 1.0)
            choices |= found.choices
            predictions += predict(group, found.choices, declared, 1 + self.spec.headroom)
            expected += expect(declared)
            executing |= declared.executing
        order = list(self.spec.models)
        predictions.sort(key=lambda one: order.index(one.model))
        expected.sort(key=lambda one: order.index(one.model))
        return Attempt(
            cards,
            seats,
            {name: choices[name] for name in order},
            tuple(predictions),
            tuple(expected),
            executing,
            tuple(group for group, _ in settled),
            max(0.0, -min(found.margin for _, found in settled)),
        )

    def _search(self, name: str, seats: Mapping[str, tuple[int, ...]], needs: Mapping[str, Need]) -> Search:
        """What is tried of a model depends on its seat alone, so it is tried once for all attempts."""
        seat = self._seat(name, seats, needs)
        if (name, seat) not in self._known:
            known, fixed = self.facts[name], self._corrections.get(name, Correction())
            if isinstance(known, LlmFacts):
                self._known[name, seat] = LlmSearch(self.spec, name, known, seat, fixed, self.cores)
            else:
                self._known[name, seat] = UnarySearch(self.spec, name, known, seat, fixed, self.cores)
        return self._known[name, seat]

    def _seat(self, name: str, seats: Mapping[str, tuple[int, ...]], needs: Mapping[str, Need]) -> Seat:
        """Room of a card: what it needs at least, and its part of what is free beside the needs of all on the card."""
        if not seats[name]:
            return Seat((HOST,), self.host)
        room = []
        for card in seats[name]:
            there = [other for other, found in seats.items() if card in found]
            free = int(self.card * USABLE) - sum(needs[other].memory for other in there)
            room.append(needs[name].memory + free // len(there))
        beside = _beside(name, seats, self.facts)
        return Seat(tuple(f"place {at}" for at in range(len(seats[name]))), min(room), bool(beside))

    def _fits_host(self, choices: Mapping[str, Choice], seats: Mapping[str, tuple[int, ...]]) -> None:
        """Raise DoesNotFitError when the models on the host take more than it has, where that is known."""
        taken = {name: choice.memory for name, choice in choices.items() if not seats[name]}
        if self.host and sum(taken.values()) > self.host:
            parts = ", ".join(f"{name} {memory / 2**30:.2f} GiB" for name, memory in taken.items())
            raise DoesNotFitError(
                f"hardware.memory: the models on the host take {sum(taken.values()) / 2**30:.2f} GiB ({parts}), and it "
                f"has {self.host / 2**30:.2f} GiB; give more, or take smaller weights or fewer models"
            )


def _beside(name: str, seats: Mapping[str, tuple[int, ...]], facts: Mapping[str, Facts]) -> list[str]:
    """Batchable models that compute on the same cards as the batchable model `name`."""
    if isinstance(facts[name], LlmFacts):
        return []
    return [
        other
        for other, theirs in seats.items()
        if other != name and set(theirs) & set(seats[name]) and not isinstance(facts[other], LlmFacts)
    ]


def _groups(seats: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """Models that share a device, directly or through others; those on the host are one group."""
    groups: list[tuple[set[int], list[str]]] = []
    for name, cards in seats.items():
        devices, names = set(cards) or {-1}, [name]
        rest = []
        for other, theirs in groups:
            if other & devices:
                devices, names = devices | other, theirs + names
            else:
                rest.append((other, theirs))
        groups = [*rest, (devices, names)]
    return [names for _, names in groups]


def _cores(known: Facts) -> int:
    return known.cores if isinstance(known, LlmFacts) else known.profile.cores


def _host_memory(known: Facts) -> int:
    return known.host_memory if isinstance(known, LlmFacts) else known.profile.host_memory
