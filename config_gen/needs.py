"""What each model takes of memory at least, and what is left for it beside those that share its device.

Must not know how models come to their devices or what is done with the room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from config_gen.facts import Facts, LlmFacts
from config_gen.placing import Need
from config_gen.spec import Spec

STEP = 64 * 2**20  # KV memory is given in whole steps of this
PARTLY = 16  # tokens of a page that a request may begin without filling it


def in_steps(memory: int, down: bool = False) -> int:
    """Whole steps of KV memory, one at least."""
    return max(1, memory // STEP if down else -(-memory // STEP)) * STEP


def need(spec: Spec, facts: Mapping[str, Facts], name: str) -> Need:
    """Of one replica: a model with the fewest pages or instances that it can be served with."""
    known, model = facts[name], spec.models[name]
    if isinstance(known, LlmFacts):
        assert model.kind == "llm"
        rate = sum(shape.rate * (shape.prompt.median + 4 * shape.output.median) for shape in model.traffic.values())
        pages = model.kv_cache_memory or in_steps((model.max_model_len + PARTLY) * known.kv_bytes_per_token)
        return Need(known.weights_memory + pages, rate)
    assert model.kind == "onnx"
    rate = sum(shape.rate for shape in model.traffic.values())
    return Need(known.profile.memory * (model.instances or 1), rate)


def room(name: str, needs: Mapping[str, Need], beside: Iterable[str], usable: int) -> int:
    """Bytes that a model may take of `usable`: what it needs, and its part of what all on the device leave."""
    sharers = {name, *beside}
    return needs[name].memory + max(0, usable - sum(needs[one].memory for one in sharers)) // len(sharers)
