"""Rules about batches: what Triton's dynamic batcher is told, and what it makes of it."""

from __future__ import annotations

from collections.abc import Iterator

from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule

DELAY = ("dynamic_batching", "max_queue_delay_microseconds")
LONG = 1_000_000  # us
SHORT = 1_000  # us: below a millisecond


@model_rule(
    "negative-batch",
    "error",
    why="Triton refuses a negative max_batch_size.",
    fix="Give the largest batch, or 0 for a model that has no batch dimension.",
)
def negative_batch(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.config.max_batch_size < 0:
        yield at(model, f"max_batch_size is {model.config.max_batch_size}", "max_batch_size")


@model_rule(
    "batching-off",
    "warning",
    why="With max_batch_size 0 Triton batches nothing: delay, priorities, timeouts and queue bounds are all without "
    "effect.",
    fix="Set max_batch_size, or remove dynamic_batching.",
)
def batching_off(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.config.HasField("dynamic_batching") and model.config.max_batch_size == 0:
        said = bool(model.root.all("max_batch_size"))
        if said or not repository.completes(model):  # else the model itself, or Triton, fills in the size
            how = "is 0" if said else "is not given, which is 0"
            yield at(model, f"dynamic_batching, and max_batch_size {how}", "dynamic_batching")


@model_rule(
    "preferred-size",
    "error",
    why="Triton refuses preferred sizes that are not from 1 to max_batch_size.",
    fix="Leave preferred_batch_size out: then full batches are preferred.",
)
def preferred_size(model: Model, repository: Repository) -> Iterator[Spot]:
    most = model.config.max_batch_size
    if repository.completes(model) and not model.root.all("max_batch_size"):
        return  # what the size will be is not known
    for size in model.config.dynamic_batching.preferred_batch_size:
        if size < 1 or size > most:
            what = f"preferred_batch_size {size}; max_batch_size is {most}"
            yield at(model, what, "dynamic_batching", "preferred_batch_size")


@model_rule(
    "preferred-splits",
    "note",
    why="A batch of the largest preferred size is sent although more requests wait: with 6 waiting, a preferred "
    "size of 4 and 8 allowed, Triton runs 4 and then 2, not 6.",
    fix="Leave preferred_batch_size out unless the engine is much faster at just these sizes.",
)
def preferred_splits(model: Model, repository: Repository) -> Iterator[Spot]:
    sizes = model.config.dynamic_batching.preferred_batch_size
    if sizes and 0 < max(sizes) < model.config.max_batch_size and min(sizes) > 0:
        what = f"preferred_batch_size up to {max(sizes)} of {model.config.max_batch_size}"
        yield at(model, what, "dynamic_batching", "preferred_batch_size")


@model_rule(
    "delay-unit",
    "note",
    why="The delay is in microseconds; below a millisecond hardly a second request arrives in it.",
    fix="1 ms is 1000. If this is what is meant, all is well.",
)
def delay_unit(model: Model, repository: Repository) -> Iterator[Spot]:
    delay = model.config.dynamic_batching.max_queue_delay_microseconds
    if model.batches and 0 < delay < SHORT:
        yield at(model, f"a delay of {delay} us is {delay / 1000:g} ms", *DELAY)


@model_rule(
    "delay-long",
    "warning",
    why="The delay is in microseconds, and a request that comes alone waits all of it.",
    fix="Give some milliseconds: 1 ms is 1000.",
)
def delay_long(model: Model, repository: Repository) -> Iterator[Spot]:
    delay = model.config.dynamic_batching.max_queue_delay_microseconds
    if model.batches and delay >= LONG:
        yield at(model, f"a request waits up to {delay / 1e6:g} s for company", *DELAY)


@model_rule(
    "delay-over-timeout",
    "warning",
    why="A request that comes alone waits for company until it has timed out, and is refused by an idle server.",
    fix="Make the delay much shorter than the timeout.",
)
def delay_over_timeout(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    policy, delay = batching.default_queue_policy, batching.max_queue_delay_microseconds
    timeout = policy.default_timeout_microseconds
    if model.batches and policy.timeout_action == 0 and 0 < timeout <= delay:
        yield at(model, f"delay {delay} us, timeout {timeout} us", *DELAY)


@model_rule(
    "ordering-levels",
    "error",
    why="Triton refuses preserve_ordering with more than one priority level.",
    fix="Choose one of them.",
)
def ordering_levels(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    if batching.preserve_ordering and batching.priority_levels > 1:
        what = f"preserve_ordering with {batching.priority_levels} levels"
        yield at(model, what, "dynamic_batching", "preserve_ordering")


@model_rule(
    "ordering-delay",
    "error",
    why="Triton refuses preserve_ordering where a timeout moves requests to the back (DELAY).",
    fix="Use REJECT, or give up the order.",
)
def ordering_delay(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    late = any(policy.timeout_action == 1 and policy.default_timeout_microseconds for policy in policies)
    if batching.preserve_ordering and batching.priority_levels <= 1 and late:
        yield at(model, "preserve_ordering with timeout_action DELAY", "dynamic_batching", "preserve_ordering")


@model_rule(
    "ordering-void",
    "note",
    why="From 25.09 to 26.07 Triton did not keep the order (core b06d69b; repaired by core PR 520 in 26.08).",
    fix="Test the order on the very release that is served, or number the answers.",
)
def ordering_void(model: Model, repository: Repository) -> Iterator[Spot]:
    batching = model.config.dynamic_batching
    if model.batches and batching.preserve_ordering and batching.priority_levels <= 1:
        yield at(model, "preserve_ordering", "dynamic_batching", "preserve_ordering")


@model_rule(
    "variable-dims",
    "warning",
    why="Only requests of equal shapes are batched: where sizes differ, the batcher's delay is spent for nothing.",
    fix="Set allow_ragged_batch where the model can take it, pad at the client, or pad inside the model behind a "
    "TYPE_STRING input.",
)
def variable_dims(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.batches and model.config.max_batch_size > 1 and not model.decoupled:
        padded = any(tensor.optional and -1 not in tensor.dims for tensor in model.config.input)
        for place, tensor in enumerate(model.config.input):
            instead = padded and tensor.optional  # clients may send the one that batches; optional-inputs tells of both
            if -1 in tensor.dims and not tensor.allow_ragged_batch and not instead:
                what = f"input '{cut(tensor.name)}' has a variable dimension and no allow_ragged_batch"
                yield at(model, what, "input", place, "dims")


@model_rule(
    "optional-inputs",
    "note",
    why="Only requests with the same set of inputs are batched.",
    fix="Let clients always send it, with a value that means none.",
)
def optional_inputs(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.batches and model.config.max_batch_size > 1 and not model.decoupled:
        for place, tensor in enumerate(model.config.input):
            if tensor.optional:
                yield at(model, f"input '{cut(tensor.name)}' is optional", "input", place)
