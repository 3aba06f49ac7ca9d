"""The schedule of an open-loop run: who arrives when and asks for what. Fixed by the seed before anything is sent.

Arrivals of a tier are a Poisson process of their own: a tier that is added or changed moves no other tier's requests.
Must not know the server, clocks or locust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from math import exp, log
from random import Random
from typing import NamedTuple

from config_gen.spec import Lengths, LlmTraffic
from loadtest.prompts import Prompts
from loadtest.samples import Planned

Z95 = 1.6448536269514722  # 95th percentile of the standard normal distribution
TEMPLATE_TOKENS = 64  # left free for what a chat template adds
MOST_REQUESTS = 1_000_000  # of one run; each has its text before the first is sent


class TooManyRequests(ValueError):
    """More than can be planned; one line with the number and what is allowed."""

    exit_status = 2


class Arrival(NamedTuple):
    """A request before it has words: `number` counts within its tier, lengths are in tokens."""

    tier: str
    number: int
    at: int  # ns since the run began
    shared: int  # of the tier's system prompt; 0 = none before this one
    own: int
    output: int


def arrivals(
    traffic: Mapping[str, LlmTraffic], duration: int, scale: float, seed: int, max_model_len: int
) -> Iterator[Arrival]:
    """All requests of `duration` ns at `scale` times the declared rates, in the order of their arrival."""
    tiers = [_arrivals(tier, shape, duration, scale, seed, max_model_len) for tier, shape in traffic.items()]
    return merge(*tiers, key=lambda arrival: (arrival.at, arrival.tier, arrival.number))


def schedule(
    traffic: Mapping[str, LlmTraffic], duration: int, scale: float, seed: int, prompts: Prompts, max_model_len: int
) -> list[Planned]:
    """The same with texts of these lengths. Raises TooManyRequests before it draws one."""
    expected = sum(shape.rate for shape in traffic.values()) * scale * duration / 1e9
    if expected > MOST_REQUESTS:
        raise TooManyRequests(
            f"{duration / 1e9:g} s at the declared rates times {scale:g} are {expected:.3g} requests; at most "
            f"{MOST_REQUESTS} are allowed: load shorter or slower"
        )
    systems = {
        tier: prompts.draw(Random(f"system/{tier}"), shape.shared_prefix) if shape.shared_prefix else ""
        for tier, shape in traffic.items()
    }
    return [
        Planned(
            id=f"{tier}-{seed}-{number}",
            tier=tier,
            at=at,
            system=systems[tier] if shared else "",
            text=prompts.draw(Random(f"{seed}/{tier}/{number}"), own),
            max_tokens=output,
        )
        for tier, number, at, shared, own, output in arrivals(traffic, duration, scale, seed, max_model_len)
    ]


def _arrivals(
    tier: str, shape: LlmTraffic, duration: int, scale: float, seed: int, max_model_len: int
) -> Iterator[Arrival]:
    random = Random(f"{seed}/{tier}")
    room = max_model_len - shape.shared_prefix - TEMPLATE_TOKENS
    at, number = random.expovariate(shape.rate * scale), 0
    while at * 1e9 < duration:
        output = min(lognormal(random, shape.output), max(1, room - 1))
        own = min(lognormal(random, shape.prompt), max(1, room - output))
        yield Arrival(tier, number, int(at * 1e9), shape.shared_prefix if number % 2 else 0, own, output)
        at, number = at + random.expovariate(shape.rate * scale), number + 1


def lognormal(random: Random, lengths: Lengths) -> int:
    """A length of at least 1 whose distribution has the given median and 95th percentile."""
    sigma = log(lengths.p95 / lengths.median) / Z95
    return max(1, round(lengths.median * exp(random.gauss(0, sigma))))
