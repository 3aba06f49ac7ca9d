"""The limits of an SLA file in the words of a served LLM's options. Must not know how a plan chooses the others."""

from __future__ import annotations

import json

from config_gen.spec import LlmModel, Spec, Targets, Tier


def options(spec: Spec, model: LlmModel) -> dict[str, str]:
    """The limits of the SLA file as options of the served model."""
    return {
        "weights": model.weights,
        "max_model_len": str(model.max_model_len),
        "tiers": json.dumps({name: _limits(tier, model.targets.get(name)) for name, tier in spec.tiers.items()}),
    }


def _limits(tier: Tier, targets: Targets | None) -> dict[str, float]:
    """A tier and its targets in the words of the option `tiers`."""
    limits = {
        "weight": tier.weight,
        "queue_timeout_ms": _ms(tier.queue_timeout),
        "max_queue": tier.max_queue,
        "ttft_ms": _ms(targets.ttft if targets else None),
        "itl_ms": _ms(targets.itl if targets else None),
        "idle_below": tier.idle_below,
        "max_long": tier.max_long,
        "long_tokens": tier.long_tokens,
    }
    return {name: value for name, value in limits.items() if value is not None}


def _ms(duration: int | None) -> int | None:
    return None if duration is None else -(-duration // 10**6)
