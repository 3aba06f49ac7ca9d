"""The schedule of an open-loop run: who arrives when and asks for what. Fixed by the seed before anything is sent.

Arrivals of a tier are a Poisson process of their own: a tier that is added or changed moves no other tier's requests.
Must not know the server, clocks or locust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, log
from random import Random

from config_gen.spec import Lengths, LlmTraffic
from loadtest.prompts import Prompts
from loadtest.samples import Planned

Z95 = 1.6448536269514722  # 95th percentile of the standard normal distribution
TEMPLATE_TOKENS = 64  # left free for what a chat template adds


def schedule(
    traffic: Mapping[str, LlmTraffic], duration: int, scale: float, seed: int, prompts: Prompts, max_model_len: int
) -> list[Planned]:
    """All requests of `duration` ns at `scale` times the declared rates, in the order of their arrival."""
    planned = [
        request
        for tier, shape in traffic.items()
        for request in _arrivals(tier, shape, duration, scale, seed, prompts, max_model_len)
    ]
    return sorted(planned, key=lambda request: (request.at, request.id))


def _arrivals(
    tier: str, shape: LlmTraffic, duration: int, scale: float, seed: int, prompts: Prompts, max_model_len: int
) -> Iterator[Planned]:
    random = Random(f"{seed}/{tier}")
    system = prompts.draw(Random(f"system/{tier}"), shape.shared_prefix) if shape.shared_prefix else ""
    room = max_model_len - shape.shared_prefix - TEMPLATE_TOKENS
    at, number = random.expovariate(shape.rate * scale), 0
    while at * 1e9 < duration:
        output = min(lognormal(random, shape.output), max(1, room - 1))
        own = min(lognormal(random, shape.prompt), max(1, room - output))
        yield Planned(
            id=f"{tier}-{seed}-{number}",
            tier=tier,
            at=int(at * 1e9),
            system=system if number % 2 else "",
            text=prompts.draw(random, own),
            max_tokens=output,
        )
        at, number = at + random.expovariate(shape.rate * scale), number + 1


def lognormal(random: Random, lengths: Lengths) -> int:
    """A length of at least 1 whose distribution has the given median and 95th percentile."""
    sigma = log(lengths.p95 / lengths.median) / Z95
    return max(1, round(lengths.median * exp(random.gauss(0, sigma))))
