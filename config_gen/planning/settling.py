"""Settings of models that share devices: each begins with its cheapest that holds alone, then all are tried together.

Where a promise is missed together, the model that misses most goes on to its next way; what is better stays. Must not
know how models came to their devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from config_gen.planning.llm_search import LlmCandidate, LlmSearch
from config_gen.planning.promises import load, margin
from config_gen.planning.unary_search import Candidate, UnarySearch
from config_gen.simulation import joint
from config_gen.simulation.serving import Capacity, Load, Observed
from config_gen.sla.spec import LlmModel, OnnxModel

Search = UnarySearch | LlmSearch
Choice = Candidate | LlmCandidate
TOGETHER = 10  # simulations of all models of a group, at most
EFFORT = 0.5  # of each
ALIKE = 3  # ways with as many instances that are tried before one more instance is


@dataclass(frozen=True)
class Settled:
    """What was chosen for a group of models, and how much of the targets it leaves at the rates with headroom."""

    choices: Mapping[str, Choice]
    margin: float
    margins: Mapping[str, float]


def on(choice: Choice, devices: tuple[str, ...]) -> Choice:
    """A way that was tried on places of a search's own, on these devices."""
    if isinstance(choice, LlmCandidate):
        return replace(choice, served=replace(choice.served, devices=devices))
    return replace(choice, served=replace(choice.served, devices=devices))


class Group:
    """Models that share devices; `at` are those of each model, `scale` that of the rates with headroom."""

    def __init__(
        self,
        searches: Mapping[str, Search],
        at: Mapping[str, tuple[str, ...]],
        devices: Mapping[str, Capacity],
        scale: float,
    ) -> None:
        self.searches, self.at, self.devices, self._scale = searches, at, devices, scale
        self.models: dict[str, LlmModel | OnnxModel] = {name: one.model for name, one in searches.items()}

    def alone(self, name: str) -> Group:
        """The same with one model only."""
        return Group({name: self.searches[name]}, self.at, self.devices, self._scale)

    def settle(self) -> Settled:
        """Deterministic: the same models and devices get the same settings."""
        ways = {name: (on(way, self.at[name]) for way in _ways(one)) for name, one in self.searches.items()}
        best = self._together({name: next(way) for name, way in ways.items()})
        tries = 0 if len(self.searches) == 1 else TOGETHER
        exhausted: set[str] = set()
        while best.margin < 0 and tries > 0 and len(exhausted) < len(ways):
            name = min((n for n in ways if n not in exhausted), key=lambda n: (best.margins[n], n))
            following = next(ways[name], None)
            if following is None:
                exhausted.add(name)
                continue
            tries -= 1
            found = self._together({**best.choices, name: following})
            if found.margin > best.margin:
                best = found
        return best

    def observe(self, choices: Mapping[str, Choice], scale: float, effort: float = 1.0) -> Observed:
        """All of the group under their declared traffic times `scale`."""
        return joint.run([choice.served for choice in choices.values()], self.devices, self.load(scale, effort))

    def load(self, scale: float, effort: float = 1.0) -> Load:
        """What `observe` sends."""
        return load(self.models, scale, effort)

    def margin(self, choices: Mapping[str, Choice], scale: float, effort: float) -> float:
        """The least share of a target that is left at `scale` times the declared rates."""
        return margin(self.models, self.observe(choices, scale, effort), self.load(scale, effort).duration)

    def _together(self, choices: Mapping[str, Choice]) -> Settled:
        if len(choices) == 1:
            [(name, choice)] = choices.items()
            return Settled(choices, choice.margin, {name: choice.margin})
        seen = self.observe(choices, self._scale, EFFORT)
        duration = self.load(self._scale, EFFORT).duration
        margins = {name: margin({name: model}, seen, duration) for name, model in self.models.items()}
        return Settled(choices, min(margins.values()), margins)


def _ways(search: Search) -> Iterator[Choice]:
    """Of the fewest instances that hold alone, the best few; then those of more instances. Of an LLM best first.

    Where none holds alone, the best of all comes first.
    """
    if isinstance(search, LlmSearch):
        yield from search.candidates()
        return
    missing: list[Choice] = []
    held = False
    for count in search.counts():
        found: Sequence[Candidate] = search.candidates(count)
        if held or found[0].margin >= 0:
            held = True
            yield from found[:ALIKE]
        else:
            missing += found[:1]
    if not held:
        yield from sorted(missing, key=lambda one: (-one.margin, one.memory))
