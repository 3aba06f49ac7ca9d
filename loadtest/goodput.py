"""Goodput: requests that met every target of their tier. Must not know servers."""

from __future__ import annotations

from config_gen.sla.spec import Targets
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
