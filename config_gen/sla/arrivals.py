"""Who arrives when and asks for how much: fixed by a seed before anything is sent.

Arrivals of each model and tier are a Poisson process of their own: one that is added or changed moves no other's
requests. Must not know texts, the server, clocks or locust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from math import exp, log
from random import Random
from typing import NamedTuple

from config_gen.sla.spec import Lengths, LlmModel, LlmTraffic, OnnxModel, OnnxTraffic

Z95 = 1.6448536269514722  # 95th percentile of the standard normal distribution
TEMPLATE_TOKENS = 64  # left free for what a chat template adds


class Arrival(NamedTuple):
    """A request before it has words: `number` counts within its model's tier, lengths are in tokens."""

    tier: str
    number: int
    at: int  # ns since the run began
    shared: int  # of the tier's system prompt; 0 = none before this one
    own: int  # 0 = it sends no text
    output: int  # 0 = the answer comes in one piece


def arrivals(
    traffic: Mapping[str, LlmTraffic], duration: int, scale: float, seed: int, max_model_len: int, chance: str = ""
) -> Iterator[Arrival]:
    """All requests to an LLM in `duration` ns at `scale` times the declared rates, in the order of their arrival.

    `chance` begins the names of its random streams, which differ between the models of a run.
    """
    streams = {tier: Random(f"{seed}/{chance}{tier}") for tier in traffic}
    return _merged(
        [_prompts(tier, shape, streams[tier], duration, scale, max_model_len) for tier, shape in traffic.items()]
    )


def unary_arrivals(
    traffic: Mapping[str, OnnxTraffic], duration: int, scale: float, seed: int, max_length: int, chance: str = ""
) -> Iterator[Arrival]:
    """The same for a model that answers in one piece and reads at most `max_length` tokens of a text."""
    streams = {tier: Random(f"{seed}/{chance}{tier}") for tier in traffic}
    return _merged([_items(tier, shape, streams[tier], duration, scale, max_length) for tier, shape in traffic.items()])


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


def _merged(tiers: list[Iterator[Arrival]]) -> Iterator[Arrival]:
    return merge(*tiers, key=lambda arrival: (arrival.at, arrival.tier, arrival.number))


def _prompts(
    tier: str, shape: LlmTraffic, random: Random, duration: int, scale: float, max_model_len: int
) -> Iterator[Arrival]:
    room = max_model_len - shape.shared_prefix - TEMPLATE_TOKENS
    for number, at in enumerate(_moments(random, shape.rate * scale, duration)):
        output = min(lognormal(random, shape.output), max(1, room - 1))
        own = min(lognormal(random, shape.prompt), max(1, room - output))
        yield Arrival(tier, number, at, shape.shared_prefix if number % 2 else 0, own, output)


def _items(
    tier: str, shape: OnnxTraffic, random: Random, duration: int, scale: float, max_length: int
) -> Iterator[Arrival]:
    for number, at in enumerate(_moments(random, shape.rate * scale, duration)):
        own = min(lognormal(random, shape.length), max_length) if shape.length else 0
        yield Arrival(tier, number, at, 0, own, 0)


def _moments(random: Random, rate: float, duration: int) -> Iterator[int]:
    """Moments in ns before `duration` of a Poisson process of `rate` per second; each is drawn when it is asked for."""
    at = random.expovariate(rate)
    while at * 1e9 < duration:
        yield int(at * 1e9)
        at += random.expovariate(rate)
