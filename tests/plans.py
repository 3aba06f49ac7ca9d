"""Planned models for tests: hand-made ones, and any that a planner could come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from config_gen.batching import Batching, QueuePolicy
from config_gen.plan import Knob, ModelPlan, Plan, Tensor, WarmUp
from config_gen.triton.llm_tensors import INPUTS, OUTPUTS

TEXT, VECTOR = Tensor("text", "TYPE_STRING", (1,)), Tensor("vector", "TYPE_FP32", (384,))
TYPES = ["TYPE_STRING", "TYPE_FP32", "TYPE_FP16", "TYPE_INT64", "TYPE_UINT8", "TYPE_BOOL"]


def embed(name: str = "embed", **more: Any) -> ModelPlan:
    """A model that answers in one piece."""
    values: dict[str, Any] = {"inputs": (TEXT,), "outputs": (VECTOR,), "batching": Batching(8), "gpus": ()}
    return ModelPlan(name=name, **{**values, **more})


def chat(name: str = "chat", **more: Any) -> ModelPlan:
    """An LLM."""
    values: dict[str, Any] = {"inputs": INPUTS, "outputs": OUTPUTS, "parameters": {}, "gpus": ()}
    return ModelPlan(name=name, **{**values, **more})


def plan(*models: ModelPlan, flags: tuple[Knob, ...] = ()) -> Plan:
    """A plan that promises nothing."""
    return Plan(models, (), 0, flags)


def stats(folder: Path) -> dict[Path, tuple[int, int]]:
    """Everything below a folder, with what changes when it is written or replaced."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*")}


policies = st.builds(
    QueuePolicy,
    timeout=st.none() | st.integers(1, 10**13),
    action=st.sampled_from(["reject", "delay"]),
    max_queue=st.none() | st.integers(1, 10**6),
)


@st.composite
def batchings(draw: Any) -> Batching:
    """Sizes and levels that fit together."""
    largest, levels = draw(st.integers(1, 1024)), draw(st.lists(policies, max_size=4))
    return Batching(
        largest,
        instances=draw(st.integers(1, 8)),
        delay=draw(st.integers(0, 10**9)),
        preferred=tuple(draw(st.lists(st.integers(1, largest), max_size=3, unique=True))),
        levels=tuple(levels),
        default_level=draw(st.integers(1, max(1, len(levels)))),
        default_policy=draw(policies),
    )


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
sizes = st.lists(st.integers(1, 4096), min_size=1, max_size=3).map(tuple)
anything = st.text(st.characters(exclude_categories=["Cs"]))
tensors = st.builds(Tensor, names, st.sampled_from(TYPES), sizes | st.just((-1,)), st.booleans())
several = st.lists(tensors, min_size=1, max_size=4, unique_by=lambda tensor: tensor.name).map(tuple)
NAMED = """
max_batch_size input output instance_group instance_group.count instance_group.rate_limiter.resources dynamic_batching
dynamic_batching.max_queue_delay_microseconds dynamic_batching.priority_levels dynamic_batching.preferred_batch_size
dynamic_batching.priority_queue_policy.2 dynamic_batching.priority_queue_policy.1.max_queue_size parameters
parameters.device model_warmup.inputs.text response_cache.enable model_transaction_policy.decoupled no.such.field
"""
knobs = st.builds(Knob, st.sampled_from(NAMED.split()) | anything, anything, anything)
models = st.builds(
    ModelPlan,
    name=names,
    gpus=st.lists(st.integers(0, 7), max_size=4, unique=True).map(tuple),
    inputs=several,
    outputs=several,
    batching=st.none() | batchings(),
    parameters=st.none() | st.dictionaries(st.just("device") | anything, anything, max_size=4),
    response_cache=st.booleans(),
    warm_up=st.none() | st.builds(WarmUp, st.integers(1, 64), several),
    rate_limit=st.none() | st.dictionaries(names, st.integers(1, 9), min_size=1, max_size=2),
    knobs=st.lists(knobs, max_size=8).map(tuple),
)
