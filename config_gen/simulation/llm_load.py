"""Arrivals at an LLM as the requests that its scheduler takes: lengths and shared prefixes become token ids.

Must not know texts or tokenizers: what ids mean is nothing to a scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from config_gen.sla.arrivals import Arrival
from decode.simulator import Timed
from decode.types import Request, SamplingParams


def requests(drawn: Iterable[Arrival], tiers: Sequence[str]) -> Iterator[Timed]:
    """Token ids for arrivals: a tier's system prompt is the same ids every time, a request's own text starts with an id
    that nobody else has, so that a prefix cache is hit where a shared prefix is meant and nowhere else."""
    ranks = {tier: at + 1 for at, tier in enumerate(tiers)}
    for at, arrival in enumerate(drawn):
        rank = ranks[arrival.tier]
        prompt = (rank,) * arrival.shared + (len(tiers) + 1 + at,) + (0,) * (arrival.own - 1)
        name = f"{arrival.tier}-{arrival.number}"
        yield arrival.at, Request(name, prompt, _sampling(arrival.output), arrival.tier)


@cache
def _sampling(output: int) -> SamplingParams:
    return SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, seed=0)
