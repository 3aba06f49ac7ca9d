"""What a built engine says of its place in a plan: its tensors, whether it runs on a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from config_gen.batching import Batching
from config_gen.plan import ModelPlan, Tensor
from engines import tensors
from engines.stamp import TENSORRT, Stamp


def engine_plan(name: str, stamp: Stamp, batching: Batching) -> ModelPlan:
    """The engine in a plan, on the first card where it needs one, else on the CPU."""
    return ModelPlan(
        name,
        gpus=(0,) if stamp.runtime in TENSORRT else (),
        inputs=planned_tensors(tensors.inputs(stamp)),
        outputs=planned_tensors(tensors.outputs(stamp)),
        batching=batching,
    )


def planned_tensors(declared: Sequence[tensors.Declared]) -> tuple[Tensor, ...]:
    """An engine's tensors in the words of a plan."""
    return tuple(Tensor(**asdict(tensor)) for tensor in declared)
