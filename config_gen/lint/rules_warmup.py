"""Rules about warm-up requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule

WARMUP = "model_warmup"


def _samples(model: Model) -> Iterator[tuple[int, Any]]:
    if not model.is_ensemble:
        yield from enumerate(model.config.model_warmup)


def _inputs(model: Model) -> Iterator[tuple[int, str, Any]]:
    for place, sample in _samples(model):
        for name, value in sorted(sample.inputs.items()):
            yield place, name, value


def _declared(model: Model) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in model.config.input}


@model_rule(
    "warmup-input",
    "error",
    why="A warm-up request is checked like any other; one that lacks an input makes the load fail.",
    fix="Give every input that is not optional.",
)
def warmup_input(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, sample in _samples(model):
        if sample.batch_size:
            missing = [t.name for t in model.config.input if not t.optional and t.name not in sample.inputs]
            if missing:
                yield at(model, f"{cut(sample.name) or 'a sample'} lacks {cut(', '.join(missing))}", WARMUP, place)


@model_rule(
    "warmup-unknown",
    "warning",
    why="Triton passes by what the model does not declare: the warm-up runs without it.",
    fix="Use the names under input.",
)
def warmup_unknown(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.config.input:
        for place, name, _ in _inputs(model):
            if name not in _declared(model):
                yield at(model, f"the model has no input '{cut(name)}'", WARMUP, place)


@model_rule(
    "warmup-type",
    "error",
    why="A warm-up input of another type than the model's makes the load fail.",
    fix="Use the data_type under input.",
)
def warmup_type(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, name, value in _inputs(model):
        tensor = _declared(model).get(name)
        if tensor is not None and tensor.data_type and value.data_type != tensor.data_type:
            yield at(model, f"'{cut(name)}' is of another data_type than the input", WARMUP, place)


@model_rule(
    "warmup-dims",
    "error",
    why="A warm-up input has sizes that are all known and fit the model's; else the load fails.",
    fix="Give dims as under input, without the batch, with a number for each -1.",
)
def warmup_dims(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, name, value in _inputs(model):
        tensor = _declared(model).get(name)
        if any(size < 0 for size in value.dims):
            yield at(model, f"'{cut(name)}' has a dimension below 0", WARMUP, place)
        elif tensor is not None and tensor.dims and not _fits(list(value.dims), list(tensor.dims)):
            what = f"'{cut(name)}' has dims {list(value.dims)[:8]}, the input {list(tensor.dims)[:8]}"
            yield at(model, what, WARMUP, place)


def _fits(sizes: list[int], declared: list[int]) -> bool:
    pairs = zip(sizes, declared, strict=False)
    return len(sizes) == len(declared) and all(wanted in (-1, size) for size, wanted in pairs)


@model_rule(
    "warmup-data",
    "error",
    why="A warm-up input needs to say where its values come from; else the load fails.",
    fix="Add zero_data: true, random_data: true or input_data_file.",
)
def warmup_data(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, name, value in _inputs(model):
        if value.WhichOneof("input_data_type") is None:
            yield at(model, f"'{cut(name)}' has no data", WARMUP, place)


@model_rule(
    "warmup-file",
    "error",
    why="The load fails when a file of warm-up data is not in the model's folder warmup.",
    fix="Put it into warmup/, or use zero_data or random_data.",
)
def warmup_file(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, name, value in _inputs(model):
        file = value.input_data_file
        if file and not (model.folder / "warmup" / file).is_file():
            yield at(model, f"warmup/{cut(file)} for '{cut(name)}' is not there", WARMUP, place)


@model_rule(
    "warmup-batch",
    "error",
    why="A warm-up batch above max_batch_size makes the load fail, and about every second time ends the whole server "
    "(segmentation fault in 2.51).",
    fix="Use at most max_batch_size.",
)
def warmup_batch(model: Model, repository: Repository) -> Iterator[Spot]:
    most = model.config.max_batch_size
    if most > 0:
        for place, sample in _samples(model):
            if sample.batch_size > most:
                yield at(model, f"batch_size {sample.batch_size}; max_batch_size is {most}", WARMUP, place)


@model_rule(
    "warmup-none",
    "warning",
    why="A sample without a batch_size is passed by: the model counts as ready and has never run.",
    fix="Set batch_size: 1 or more, also for a model that does not batch.",
)
def warmup_none(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, sample in _samples(model):
        if not sample.batch_size:
            yield at(model, f"{cut(sample.name) or 'a sample'} has batch_size 0", WARMUP, place)
