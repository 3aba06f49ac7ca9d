"""A planned model as Triton's ModelConfig. The only place that knows which field of it says what of a plan.

Must not know why a value was chosen, how the message becomes text, or where that is written.
"""

from __future__ import annotations

from typing import Any

from config_gen.batching import Batching, QueuePolicy
from config_gen.plan import ModelPlan, Tensor, WarmUp
from config_gen.triton.model_config import proto

BACKEND = "python"
MICROSECOND = 1000  # ns; Triton's unit of every time
ACTIONS = {"reject": "REJECT", "delay": "DELAY"}


def config(model: ModelPlan) -> Any:
    """The ModelConfig of a planned model: nothing in it is left to what Triton would fill in.

    A model with parameters and no batching is an LLM: it batches by itself, so Triton must not, and answers in parts.
    """
    batching = model.batching
    made = proto().ModelConfig(
        name=model.name,
        backend=BACKEND,
        max_batch_size=batching.max_batch_size if batching else 0,
        input=[proto().ModelInput(**_declared(tensor), optional=tensor.optional) for tensor in model.inputs],
        output=[proto().ModelOutput(**_declared(tensor)) for tensor in model.outputs],
        instance_group=[_instances(model)],
    )
    if batching is not None:
        made.dynamic_batching.CopyFrom(_dynamic_batching(batching))
    elif model.parameters is not None:
        made.model_transaction_policy.decoupled = True
    for key, value in (model.parameters or {}).items():
        made.parameters[key].string_value = value
    if model.warm_up is not None:
        made.model_warmup.append(_warm_up(model.warm_up))
    if model.response_cache:
        made.response_cache.enable = True
    return made


def _declared(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": proto().DataType.Value(tensor.data_type), "dims": tensor.dims}


def _instances(model: ModelPlan) -> Any:
    """One group: `count` instances on each card that it names, or on the CPU."""
    kinds = proto().ModelInstanceGroup
    group = kinds(
        count=model.batching.instances if model.batching else 1,
        kind=kinds.KIND_GPU if model.gpus else kinds.KIND_CPU,
        gpus=model.gpus,
    )
    for name, count in (model.rate_limit or {}).items():
        group.rate_limiter.resources.add(name=name, count=count)
    return group


def _dynamic_batching(batching: Batching) -> Any:
    """Every level has its policy written: one that is left out would take the default's."""
    made = proto().ModelDynamicBatching(
        preferred_batch_size=batching.preferred, max_queue_delay_microseconds=batching.delay // MICROSECOND
    )
    if batching.default_policy != QueuePolicy():
        made.default_queue_policy.CopyFrom(_policy(batching.default_policy))
    if batching.levels:
        made.priority_levels = len(batching.levels)
        made.default_priority_level = batching.default_level
        for level, policy in enumerate(batching.levels, start=1):
            made.priority_queue_policy[level].CopyFrom(_policy(policy))
    return made


def _policy(policy: QueuePolicy) -> Any:
    """0 is Triton's word for no timeout and for no bound, so a timeout below a microsecond is one."""
    made = proto().ModelQueuePolicy(max_queue_size=policy.max_queue or 0)
    if policy.timeout is not None:
        made.default_timeout_microseconds = max(1, -(-policy.timeout // MICROSECOND))
    made.timeout_action = proto().ModelQueuePolicy.TimeoutAction.Value(ACTIONS[policy.action])
    return made


def _warm_up(warm: WarmUp) -> Any:
    made = proto().ModelWarmup(name="zeros", batch_size=warm.batch_size)
    for tensor in warm.inputs:
        declared = _declared(tensor)
        made.inputs[declared.pop("name")].CopyFrom(proto().ModelWarmup.Input(**declared, zero_data=True))
    return made
