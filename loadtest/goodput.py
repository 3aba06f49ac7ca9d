"""Goodput: requests that met every target of their tier. Must not know servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from config_gen.sla.spec import LlmModel, OnnxModel, Targets
from loadtest.samples import Sample


def is_good(sample: Sample, targets: Targets | None) -> bool:
    """Whether a request ended well within every target of its tier; without targets, whether it ended well.

    The ITL of one request is its time per output token after the first, as DistServe (Zhong et al., OSDI 2024) counts.
    """
    if sample.outcome != "ok":
        return False
    if targets is None:
        return True
    ttft, gaps = sample.ttft, list(sample.itl())
    return (
        (targets.e2e is None or sample.e2e <= targets.e2e)
        and (targets.ttft is None or ttft is None or ttft <= targets.ttft)
        and (targets.itl is None or not gaps or sum(gaps) / len(gaps) <= targets.itl)
    )


class Rate(NamedTuple):
    """Requests per second."""

    good: float
    offered: float


def goodput(
    samples: Iterable[Sample], models: Mapping[str, LlmModel | OnnxModel], duration: int
) -> dict[tuple[str, str], Rate]:
    """Of each model and tier of a load of `duration` ns."""
    good, offered = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in samples:
        key = (one.model, one.tier)
        offered[key] += 1
        good[key] += is_good(one, models[one.model].targets.get(one.tier))
    seconds = duration / 1e9
    return {key: Rate(good[key] / seconds, offered[key] / seconds) for key in sorted(offered)}
