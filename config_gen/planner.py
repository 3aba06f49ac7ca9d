"""From promises and measured costs to a plan: cheapest first (cards, then memory), then the most headroom.

Wires placing, the searches of single models, and their simulation together. Must not know files or the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from config_gen.advice import advise
from config_gen.arrivals import chance
from config_gen.facts import Facts, LlmFacts
from config_gen.llm_search import LlmSearch
from config_gen.needs import need, room
from config_gen.placing import MOST_SHARING, USABLE, DoesNotFitError, place, slice_of
from config_gen.plan import Expectation, Knob, ModelPlan, Plan, Prediction
from config_gen.predicting import expect, predict
from config_gen.reasons import model_plan
from config_gen.serving import HOST, Capacity, Unary
from config_gen.settling import Choice, Group, Search
from config_gen.spec import OnnxModel, Spec
from config_gen.unary_search import UnarySearch
from config_gen.wishes import PlanError, check

SWITCH = 4_000_000  # ns: processes that share a card by time slices pay 3 to 5 ms to change context (field report)
EVER = 2**60  # bytes of a host that nobody measured
Tell = Callable[[str, float], None]


def quiet(what: str, share: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What a server showed of one model: its time over the profile's, and ns of each request outside of it."""

    factor: float = 1.0
    around: int = 0


@dataclass(frozen=True)
class Attempt:
    """Every model placed and set, and what each promise gets."""

    cards: int
    seats: Mapping[str, tuple[int, ...]]
    choices: Mapping[str, Choice]
    predictions: tuple[Prediction, ...]
    expected: tuple[Expectation, ...]
    executing: Mapping[str, float]
    margin: float
    groups: tuple[Group, ...] = field(repr=False, default=())

    @property
    def held(self) -> bool:
        return all(found.held for found in self.predictions)

    @property
    def memory(self) -> int:
        return sum(choice.memory * max(1, len(self.seats[name])) for name, choice in self.choices.items())


class Planner:
    """One file on its hardware."""

    def __init__(
        self, spec: Spec, facts: Mapping[str, Facts], corrections: Mapping[str, Correction], tell: Tell
    ) -> None:
        """Raises PlanError for what cannot be."""
        self.spec, self.facts, self._tell = spec, facts, tell
        self._corrections = corrections
        self.cores = spec.hardware.cores or max((_cores(known) for known in facts.values()), default=1) or 1
        self.count = sum(gpu.count for gpu in spec.hardware.gpus)
        self.card = min((gpu.bytes for gpu in spec.hardware.gpus), default=0)
        self.host = spec.hardware.memory or max((_host_memory(known) for known in facts.values()), default=0)
        check(spec, facts, self.cores, self.card, self.host)
        self._on_cards = [name for name in spec.models if facts[name].on_gpu]
        self._needs = {name: need(spec, facts, name) for name in spec.models}

    def attempts(self, fewest: int = 1) -> Iterator[Attempt]:
        """On as few cards as possible first, until one holds; each is the best on its number of cards.

        Raises PlanError when the models do not fit on all cards.
        """
        problem: DoesNotFitError | None = None
        found = False
        for cards in range(fewest, self.count + 1) if self._on_cards else (0,):
            try:
                attempt = self.on(cards)
            except DoesNotFitError as error:
                problem = error
                continue
            found = True
            yield attempt
            if attempt.held:
                return
        if not found:
            raise PlanError(str(problem))

    def on(self, cards: int) -> Attempt:
        """The best on so many cards: replicas are added to the model that misses most. Raises DoesNotFitError."""
        replicas = dict.fromkeys(self._on_cards, 1)
        best = self._placed(cards, replicas)
        while not best.held:
            missing = {p.model: p.margin for p in sorted(best.predictions, key=lambda p: -p.margin) if not p.held}
            more = [name for name in missing if name in replicas and replicas[name] < cards]
            if not more:
                break
            replicas[min(more, key=lambda name: (missing[name], name))] += 1
            try:
                found = self._placed(cards, replicas)
            except DoesNotFitError:
                break
            if found.margin > best.margin:
                best = found
        return best

    def _placed(self, cards: int, replicas: Mapping[str, int]) -> Attempt:
        sharing = self.spec.hardware.sharing
        needs = {name: self._needs[name] for name in self._on_cards}
        seats = dict.fromkeys(self.spec.models, ()) | (
            place(needs, replicas, cards, self.card, sharing == "in-process") if needs else {}
        )
        sharers = {card: sum(card in found for found in seats.values()) for card in range(cards)}
        searches, devices = self._searches(seats, sharers)
        groups, choices, predictions = [], dict[str, Choice](), list[Prediction]()
        expected, executing, least = list[Expectation](), dict[str, float](), 1.0
        for names in _groups(seats):
            group = Group({name: searches[name] for name in names}, devices, 1 + self.spec.headroom)
            self._tell(f"planning {', '.join(names)}", len(choices) / len(seats))
            settled = group.settle()
            choices |= settled.choices
            declared = group.observe(settled.choices, 1.0)
            predictions += predict(group, settled.choices, declared, 1 + self.spec.headroom)
            expected += expect(declared)
            executing |= declared.executing
            least = min(least, settled.margin)
            groups.append(group)
        order = list(self.spec.models)
        for found in (predictions, expected):
            found.sort(key=lambda one: order.index(one.model))
        return Attempt(
            cards,
            seats,
            {name: choices[name] for name in order},
            tuple(predictions),
            tuple(expected),
            executing,
            least,
            tuple(groups),
        )

    def _searches(
        self, seats: Mapping[str, tuple[int, ...]], sharers: Mapping[int, int]
    ) -> tuple[dict[str, Search], dict[str, Capacity]]:
        devices = {HOST: Capacity(float(self.cores))}
        searches: dict[str, Search] = {}
        for name, cards in seats.items():
            fixed, factor = self._corrections.get(name, Correction()), 1.0
            beside = [other for other, theirs in seats.items() if set(theirs) & set(cards) or not (theirs or cards)]
            left = room(name, self._needs, beside, self.host or EVER)
            names: tuple[str, ...] = (HOST,)
            if cards:
                apart = self.spec.hardware.sharing == "mig"
                compute, memory = slice_of(max(sharers[card] for card in cards)) if apart else (1.0, 1.0)
                usable = int(self.card * memory * USABLE)
                if apart and self._needs[name].memory > usable:
                    raise DoesNotFitError(
                        f"models.{name}: needs {self._needs[name].memory / 2**30:.1f} GiB, and an instance of MIG with "
                        f"{memory:.0%} of a card has {usable / 2**30:.1f} GiB"
                    )
                factor, left = 1 / compute, room(name, self._needs, () if apart else beside, usable)
                names = tuple(f"card {card}{f'/{name}' if apart else ''}" for card in cards)
                switch = float(SWITCH) if self.spec.hardware.sharing == "time-slice" else 0.0
                devices |= dict.fromkeys(names, Capacity(1.0, switch, MOST_SHARING))
            searches[name] = self._search(name, names, left, factor * fixed.factor, fixed.around)
        return searches, devices

    def _search(self, name: str, devices: tuple[str, ...], room: int, factor: float, around: int) -> Search:
        known, stream = self.facts[name], chance(self.spec.models, name)
        if isinstance(known, LlmFacts):
            if not known.on_gpu:  # on fewer cores than it was measured on, a step may take as many times longer
                factor *= max(1.0, known.cores / self.cores)
            return LlmSearch(self.spec, name, known, stream, devices, self.cores, room, factor, around)
        return UnarySearch(self.spec, name, known, stream, devices, self.cores, factor, around, room)


def plan(
    spec: Spec,
    facts: Mapping[str, Facts],
    corrections: Mapping[str, Correction] | None = None,
    tell: Tell = quiet,
    advice: bool = True,
) -> Plan:
    """The cheapest plan that keeps every promise at the declared rates plus the headroom, or the nearest, with advice.

    Without `advice` nobody looks for what would do. `facts` of every model of the file. Deterministic. Raises PlanError
    for what cannot be.
    """
    planner = Planner(spec, facts, corrections or {}, tell)
    best: Attempt | None = None
    for attempt in planner.attempts():
        if best is None or attempt.margin > best.margin:
            best = attempt
    assert best is not None
    told = () if best.held or not advice else _advice(planner, best, corrections or {})
    models = _models(planner, best)
    return Plan(
        models,
        best.predictions,
        best.cards,
        _flags(spec, models),
        told,
        expected=best.expected,
        executing=best.executing,
    )


def _advice(planner: Planner, nearest: Attempt, corrections: Mapping[str, Correction]) -> tuple[str, ...]:
    def holds(spec: Spec, facts: Mapping[str, Facts], fewest: int) -> bool:
        try:
            return any(found.held for found in Planner(spec, facts, corrections, quiet).attempts(fewest))
        except PlanError:
            return False

    groups = [(group, {name: nearest.choices[name] for name in group.models}) for group in nearest.groups]
    return advise(planner.spec, planner.facts, planner.cores, nearest.predictions, groups, holds)


def _models(planner: Planner, attempt: Attempt) -> tuple[ModelPlan, ...]:
    spec, shared = planner.spec, _sharing(attempt.seats, attempt.choices)
    return tuple(
        model_plan(
            spec,
            name,
            planner.facts[name],
            choice,
            attempt.seats[name],
            planner.card,
            planner.cores,
            shared.get(name, ""),
        )
        for name, choice in attempt.choices.items()
    )


def _flags(spec: Spec, models: Sequence[ModelPlan]) -> tuple[Knob, ...]:
    """Flags of the server whose values follow from more than one model."""
    found = []
    resources = sorted({resource for model in models for resource in model.rate_limit or {}})
    for resource in resources:
        told = "of each card; by default it would be the most that one instance asks for, and instances took turns"
        found.append(Knob("--rate-limit-resource", f"{resource}:{MOST_SHARING}", told))
    caches = [model.response_cache for model in spec.models.values() if isinstance(model, OnnxModel)]
    if size := sum(cache.size for cache in caches if cache is not None):
        found.append(Knob("--cache-config", f"local,size={size}", "bytes, as the file gives them for its models"))
    return tuple(found)


def _sharing(seats: Mapping[str, tuple[int, ...]], choices: Mapping[str, Choice]) -> dict[str, str]:
    """Models that compute on a card with others of their kind: the rate limiter bounds how many do at once."""
    found = {}
    for name, cards in seats.items():
        others = [o for o, theirs in seats.items() if o != name and set(cards) & set(theirs)]
        batchable = [o for o in [name, *others] if isinstance(choices[o].served, Unary)]
        if cards and name in batchable and len(batchable) > 1:
            found[name] = ", ".join(o for o in batchable if o != name)
    return found


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
