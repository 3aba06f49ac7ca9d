"""Who arrives when and asks for how much: fixed by a seed before anything is sent.

Arrivals of each model and tier are a process of their own, Poisson unless another timing is asked for: one that is
added or changed moves no other's requests. Must not know texts, the server, clocks or locust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from math import exp, log
from random import Random
from typing import NamedTuple

from config_gen.sla.spec import Lengths, LlmModel, LlmTraffic, OnnxModel, OnnxTraffic
from config_gen.sla.timing import Timing

Z95 = 1.6448536269514722  # 95th percentile of the standard normal distribution
TEMPLATE_TOKENS = 64  # left free for what a chat template adds
DECLARED = Timing()  # what the SLA file means by a rate


class Arrival(NamedTuple):
    """A request before it has words: `number` counts within its model's tier, lengths are in tokens."""

    tier: str
    number: int
    at: int  # ns since the run began
    shared: int  # of the tier's system prompt; 0 = none before this one
    own: int  # 0 = it sends no text
    output: int  # 0 = the answer comes in one piece


def arrivals(
    traffic: Mapping[str, LlmTraffic],
    duration: int,
    scale: float,
    seed: int,
    max_model_len: int,
    chance: str = "",
    timing: Timing = DECLARED,
) -> Iterator[Arrival]:
    """All requests to an LLM in `duration` ns at `scale` times the declared rates, in the order of their arrival.

    `chance` begins the names of its random streams, which differ between the models of a run. With another `timing`
    the same requests come at other times.
    """
    drawn = []
    for tier, shape in traffic.items():
        random, own = _streams(tier, seed, chance)
        moments = timing.moments(random, own, shape.rate * scale, duration)
        drawn.append(_prompts(tier, shape, random, moments, max_model_len))
    return _merged(drawn)


def unary_arrivals(
    traffic: Mapping[str, OnnxTraffic],
    duration: int,
    scale: float,
    seed: int,
    max_length: int,
    chance: str = "",
    timing: Timing = DECLARED,
) -> Iterator[Arrival]:
    """The same for a model that answers in one piece and reads at most `max_length` tokens of a text."""
    drawn = []
    for tier, shape in traffic.items():
        random, own = _streams(tier, seed, chance)
        moments = timing.moments(random, own, shape.rate * scale, duration)
        drawn.append(_items(tier, shape, random, moments, max_length))
    return _merged(drawn)


def chance(models: Mapping[str, LlmModel | OnnxModel], name: str) -> str:
    """What begins the names of the random streams of model `name` of a file.

    Nothing for the LLM declared first, which so draws by tier alone what a file with it alone draws; its name for any
    other, so that no two send at the same moments.
    """
    first = next((other for other, model in models.items() if isinstance(model, LlmModel)), None)
    return "" if name == first else f"{name}/"


def lognormal(random: Random, lengths: Lengths) -> int:
    """A length of at least 1 whose distribution has the given median and 95th percentile."""
    sigma = log(lengths.p95 / lengths.median) / Z95
    return max(1, round(lengths.median * exp(random.gauss(0, sigma))))


def fitted(prompt: int, output: int, room: int) -> tuple[int, int]:
    """Tokens of a prompt and an answer, cut to `room` in all where they have more: at least one of each."""
    output = min(output, max(1, room - 1))
    return min(prompt, max(1, room - output)), output


def _streams(tier: str, seed: int, chance: str) -> tuple[Random, Random]:
    """Of lengths and Poisson gaps in turn, and of other gaps."""
    return Random(f"{seed}/{chance}{tier}"), Random(f"gaps/{seed}/{chance}{tier}")


def _merged(tiers: list[Iterator[Arrival]]) -> Iterator[Arrival]:
    return merge(*tiers, key=lambda arrival: (arrival.at, arrival.tier, arrival.number))


def _prompts(
    tier: str, shape: LlmTraffic, random: Random, moments: Iterator[int], max_model_len: int
) -> Iterator[Arrival]:
    room = max_model_len - shape.shared_prefix - TEMPLATE_TOKENS
    for number, at in enumerate(moments):
        output = lognormal(random, shape.output)
        own, output = fitted(lognormal(random, shape.prompt), output, room)
        yield Arrival(tier, number, at, shape.shared_prefix if number % 2 else 0, own, output)


def _items(tier: str, shape: OnnxTraffic, random: Random, moments: Iterator[int], max_length: int) -> Iterator[Arrival]:
    for number, at in enumerate(moments):
        own = min(lognormal(random, shape.length), max_length) if shape.length else 0
        yield Arrival(tier, number, at, 0, own, 0)
