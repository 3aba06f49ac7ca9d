"""What each model takes of memory at least, and of a card's time by a guess: what placing goes by.

Must not know how models come to their devices or what is done with the room.
"""

from __future__ import annotations

from collections.abc import Mapping

from config_gen.facts import Facts, LlmFacts
from config_gen.planning.placing import Need
from config_gen.sla.spec import LlmModel, Spec
from decode.executors.gpu_cost import StepWork

BATCH = 16  # requests at once, at which the share of a card that a model takes is guessed
PAGE = 16  # tokens, of which the last page of a request may be filled in part


def need(spec: Spec, facts: Mapping[str, Facts], name: str) -> Need:
    """Of one replica: a model with the fewest pages or instances that it can be served with."""
    known, model = facts[name], spec.models[name]
    if isinstance(known, LlmFacts):
        assert isinstance(model, LlmModel)
        step = known.law.step(StepWork(0, 0, 0, BATCH, 0, BATCH)) / BATCH
        load = sum(
            one.rate * (known.law.step(StepWork(one.prompt.median, 1, 0, 0, 0, 1)) + one.output.median * step)
            for one in model.traffic.values()
        )
        pages = model.kv_cache_memory or (model.max_model_len + PAGE) * known.kv_bytes_per_token
        return Need(known.weights_memory + pages, load / 1e9)
    assert not isinstance(model, LlmModel)
    rate = sum(one.rate for one in model.traffic.values())
    run = known.profile.ns(BATCH, known.profile.typical_length) / BATCH
    return Need(known.memory * (model.instances or 1), rate * run / 1e9)


def on_host(spec: Spec, facts: Mapping[str, Facts]) -> dict[str, int]:
    """Bytes of the host that its models, swapped pages and caches take at least, by what they are."""
    found = {name: need(spec, facts, name).memory for name in spec.models if not facts[name].on_gpu}
    for name, model in spec.models.items():
        if isinstance(model, LlmModel):
            found[f"swap_space of {name}"] = model.swap_space or 0
        elif model.response_cache is not None:
            found[f"response_cache of {name}"] = model.response_cache.size
    return {what: size for what, size in found.items() if size}
