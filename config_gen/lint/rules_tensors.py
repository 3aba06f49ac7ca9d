"""Rules about the inputs and outputs that a configuration declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule


def tensors(model: Model) -> Iterator[tuple[str, int, Any]]:
    """Field name, place in it, and the declaration."""
    for name in ("input", "output"):
        for place, tensor in enumerate(getattr(model.config, name)):
            yield name, place, tensor


@model_rule(
    "tensor-name",
    "error",
    why="An input or output without a name cannot be sent or read; Triton fails to load the model.",
    fix="Give it the name the model uses.",
)
def tensor_name(model: Model, repository: Repository) -> Iterator[Spot]:
    for field, place, tensor in tensors(model):
        if not tensor.name:
            yield at(model, f"{field} {place + 1} has no name", field, place)


@model_rule(
    "tensor-type",
    "error",
    why="Triton fails to load a model with a tensor of no type, unless the model completes its own configuration.",
    fix="Declare data_type: TYPE_FP32, TYPE_INT64, TYPE_STRING or another.",
)
def tensor_type(model: Model, repository: Repository) -> Iterator[Spot]:
    if not repository.completes(model):
        for field, place, tensor in tensors(model):
            if tensor.name and tensor.data_type == 0:
                yield at(model, f"{field} '{cut(tensor.name)}' has no data_type", field, place)


@model_rule(
    "tensor-dims",
    "error",
    why="Dimensions are whole numbers from 1, or -1 for any size, and at least one is needed; Triton fails to load the "
    "model.",
    fix="Declare dims, without the batch where max_batch_size is above 0; [ 1 ] for a single value.",
)
def tensor_dims(model: Model, repository: Repository) -> Iterator[Spot]:
    for field, place, tensor in tensors(model):
        if wrong := [size for size in tensor.dims if size == 0 or size < -1]:
            yield at(model, f"{field} '{cut(tensor.name)}' has a dimension {wrong[0]}", field, place, "dims")
        elif not tensor.dims and tensor.data_type and not repository.completes(model):
            yield at(model, f"{field} '{cut(tensor.name)}' has no dims", field, place)


@model_rule(
    "duplicate-input",
    "error",
    why="Triton loads the model and refuses every request: it expects the input twice and takes it once.",
    fix="Give each input a name of its own.",
)
def duplicate_input(model: Model, repository: Repository) -> Iterator[Spot]:
    counts = Counter(tensor.name for tensor in model.config.input)
    for place, tensor in enumerate(model.config.input):
        if tensor.name and counts.pop(tensor.name, 0) > 1:
            yield at(model, f"input '{cut(tensor.name)}' is declared more than once", "input", place)


@model_rule(
    "reshape",
    "error",
    why="A reshape must keep the number of elements; Triton fails to load the model.",
    fix="Make the products of dims and shape equal.",
)
def reshape(model: Model, repository: Repository) -> Iterator[Spot]:
    for field, place, tensor in tensors(model):
        sizes = [*tensor.dims, *tensor.reshape.shape]
        if tensor.HasField("reshape") and min(sizes, default=1) > 0:
            before, after = prod(tensor.dims), prod(tensor.reshape.shape)
            if before != after:
                yield at(model, f"{before} elements become {after}", field, place, "reshape")


@model_rule(
    "no-tensors",
    "warning",
    why="A Python model that declares no input refuses whatever is sent, and one that declares no output answers with "
    "nothing; both load.",
    fix="Declare input and output, or complete them in auto_complete_config of model.py.",
)
def no_tensors(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.backend == "python" and model.source and not repository.completes(model):
        missing = [name for name in ("input", "output") if not getattr(model.config, name)]
        if missing:
            yield at(model, f"no {' and no '.join(missing)} is declared")


@model_rule(
    "batch-in-dims",
    "note",
    why="With max_batch_size above 0 Triton puts the batch in front of dims, so that requests need one dimension more.",
    fix="Leave the batch out of dims, or set max_batch_size: 0 where dims are whole.",
)
def batch_in_dims(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.config.max_batch_size > 0:
        for field, place, tensor in tensors(model):
            first, *rest = tensor.dims or [0]
            if first == -1 and len(rest) >= 3 and min(rest) > 0:
                what = f"{field} '{cut(tensor.name)}' has dims [-1, …] of {len(rest) + 1}, and a batch before them"
                yield at(model, what, field, place, "dims")
