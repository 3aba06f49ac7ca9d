"""The limits of an SLA file in the words of a served LLM's options. Must not know how a plan chooses the others."""

from __future__ import annotations

import json

from config_gen.sla.spec import LlmModel, Spec, Targets, Tier


def options(spec: Spec, model: LlmModel) -> dict[str, str]:
    """The limits of the SLA file as options of the served model; what it does not pin keeps its default."""
    pinned = {
        "max_num_seqs": _number(model.max_num_seqs),
        "max_num_batched_tokens": _number(model.max_num_batched_tokens),
        "kv_cache_memory": _size(model.kv_cache_memory),
        "swap_space": _size(model.swap_space),
    }
    return {
        "weights": model.weights,
        "max_model_len": str(model.max_model_len),
        "tiers": json.dumps({name: _limits(tier, model.targets.get(name)) for name, tier in spec.tiers.items()}),
        **{name: text for name, text in pinned.items() if text is not None},
    }


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _size(value: int | None) -> str | None:
    return None if value is None else size_text(value)


def size_text(value: int) -> str:
    """Bytes as an option takes them, down to whole KiB."""
    if not value:
        return "0"
    return f"{value // 2**20}MiB" if value % 2**20 == 0 else f"{max(1, value // 2**10)}KiB"


def _limits(tier: Tier, targets: Targets | None) -> dict[str, float]:
    """A tier and its targets in the words of the option `tiers`."""
    limits = {
        "weight": tier.weight,
        "queue_timeout_ms": _ms(tier.queue_timeout),
        "max_queue": tier.max_queue,
        "ttft_ms": _ms(targets.ttft if targets else None),
        "itl_ms": _ms(targets.itl if targets else None),
        "e2e_ms": _ms(targets.e2e if targets else None),
        "idle_below": tier.idle_below,
        "max_long": tier.max_long,
        "long_tokens": tier.long_tokens,
    }
    return {name: value for name, value in limits.items() if value is not None}


def _ms(duration: int | None) -> int | None:
    return None if duration is None else -(-duration // 10**6)
