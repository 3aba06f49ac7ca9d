"""The schedule of an open-loop run: what is sent when, to all its models. Fixed by the seed before anything is sent.

Must not know the server, clocks or locust.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from random import Random

from config_gen.sla.arrivals import DECLARED, Arrival, arrivals, unary_arrivals
from config_gen.sla.spec import LlmModel, OnnxModel
from config_gen.sla.timing import Timing
from loadtest.prompts import Prompts
from loadtest.samples import POOL, Planned

MOST_REQUESTS = 1_000_000  # of one run; each has its text before the first is sent


class TooManyRequests(ValueError):
    """More than can be planned; one line with the number and what is allowed."""

    exit_status = 2


@dataclass(frozen=True)
class Part:
    """One model of a run and what its tiers send. `texts` draws it: None where no tier sends text.

    `chance` begins the names of its random streams and of its requests: those of two models must differ. `tiers` are
    all of the file, the most urgent first: their places are Triton's priorities. With other `words` the same requests
    have other texts of the same lengths: a server's prefix cache, which outlives a run, knows none of them.
    """

    name: str
    model: LlmModel | OnnxModel
    texts: Prompts | None
    chance: str = ""
    tiers: tuple[str, ...] = ()
    words: str = ""

    @property
    def rate(self) -> float:
        """Declared requests per second, of all tiers."""
        return sum(shape.rate for shape in self.model.traffic.values())

    def arrivals(self, duration: int, scale: float, seed: int, timing: Timing = DECLARED) -> Iterator[Arrival]:
        """Its requests of `duration` ns at `scale` times the declared rates, before they have words."""
        model = self.model
        if isinstance(model, LlmModel):
            return arrivals(model.traffic, duration, scale, seed, model.max_model_len, self.chance, timing)
        return unary_arrivals(model.traffic, duration, scale, seed, model.max_length, self.chance, timing)

    def planned(self, drawn: Iterable[Arrival], seed: int) -> Iterator[Planned]:
        """The same with texts of these lengths."""
        systems: dict[str, str] = {}
        for tier, number, at, shared, own, output in drawn:
            if shared and tier not in systems:
                systems[tier] = self._text(f"system/{self.chance}{tier}", shared)
            yield Planned(
                id=f"{self.chance}{tier}-{seed}-{number}",
                model=self.name,
                tier=tier,
                at=at,
                text=self._text(f"{seed}/{self.chance}{tier}/{number}", own) if own else "",
                system=systems[tier] if shared else "",
                max_tokens=output,
                item=None if own else number % POOL,
                priority=0 if output else self._priority(tier),
            )

    def _priority(self, tier: str) -> int:
        return self.tiers.index(tier) + 1 if tier in self.tiers else 0

    def _text(self, stream: str, tokens: int) -> str:
        assert self.texts is not None, "a tier that sends text needs something to draw it"
        return self.texts.draw(Random(self.words + stream), tokens)


def schedule(parts: Sequence[Part], duration: int, scale: float, seed: int, timing: Timing = DECLARED) -> list[Planned]:
    """All requests of `duration` ns in the order of their arrival. Raises TooManyRequests before it draws one."""
    times = scale * timing.rates.integral(duration / 1e9) / (duration / 1e9)
    expected = sum(part.rate for part in parts) * times * duration / 1e9
    if expected > MOST_REQUESTS:
        raise TooManyRequests(
            f"{duration / 1e9:g} s at the declared rates times {times:g} are {expected:.3g} requests; at most "
            f"{MOST_REQUESTS} are allowed: load shorter or slower"
        )
    drawn = [part.planned(part.arrivals(duration, scale, seed, timing), seed) for part in parts]
    return list(merge(*drawn, key=lambda request: request.at))
