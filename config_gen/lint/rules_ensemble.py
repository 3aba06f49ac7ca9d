"""Rules about ensembles: the steps, their tensors, and what an ensemble may not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule

STEPS = ("ensemble_scheduling", "step")


def _steps(model: Model, repository: Repository) -> Iterator[tuple[int, Any, Model | None]]:
    """Place, step, and its model where that is in the repository and can be read."""
    if model.is_ensemble:
        for place, step in enumerate(model.config.ensemble_scheduling.step):
            found = repository.models.get(step.model_name)
            yield place, step, found if found is not None and found.config is not None else None


def _declares(model: Model, repository: Repository) -> bool:
    """Whether all its tensors stand in its configuration."""
    return bool(model.config.input and model.config.output) and not repository.completes(model)


@model_rule(
    "ensemble-platform",
    "error",
    why='Triton wants platform: "ensemble" and ensemble_scheduling together; an ensemble has no other scheduler and no '
    "backend.",
    fix='Say platform: "ensemble", no backend, and ensemble_scheduling with steps; batching belongs to the steps.',
)
def ensemble_platform(model: Model, repository: Repository) -> Iterator[Spot]:
    has = model.config.HasField("ensemble_scheduling")
    if has and not model.is_ensemble:
        yield at(model, "ensemble_scheduling on a model whose platform is not ensemble", "ensemble_scheduling")
    elif model.is_ensemble and not model.config.ensemble_scheduling.step:
        yield at(model, "an ensemble without steps", "dynamic_batching" if not has else "ensemble_scheduling")


@model_rule(
    "ensemble-model",
    "error",
    why="An ensemble is loaded only with all models of its steps.",
    fix="Add the model, or mend model_name and model_version (-1 is the newest).",
)
def ensemble_model(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, step, _ in _steps(model, repository):
        there = repository.models.get(step.model_name)
        if there is None:
            yield at(model, f"no model '{cut(step.model_name)}' in the repository", *STEPS, place)
        elif step.model_version > 0 and there.versions and step.model_version not in there.served:
            what = f"version {step.model_version} of '{cut(step.model_name)}' is not served"
            yield at(model, what, *STEPS, place, "model_version")


@model_rule(
    "ensemble-cycle",
    "error",
    why="An ensemble that needs itself is refused.",
    fix="Break the circle.",
)
def ensemble_cycle(model: Model, repository: Repository) -> Iterator[Spot]:
    seen: set[str] = set()
    ahead = [model]
    while ahead:
        here = ahead.pop()
        for _, step, found in _steps(here, repository):
            if step.model_name == model.name:
                yield at(model, f"'{cut(here.name)}' has it as a step", "ensemble_scheduling")
                return
            if found is not None and found.name not in seen:
                seen.add(found.name)
                ahead.append(found)


@model_rule(
    "ensemble-tensor",
    "error",
    why="A key of input_map or output_map is the model's own name of a tensor; Triton refuses one that it has not.",
    fix="key is the model's tensor, value the ensemble's.",
)
def ensemble_tensor(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, step, found in _steps(model, repository):
        if found is not None and _declares(found, repository):
            for field, mapping, known in _mapped(step, found):
                for key in sorted(set(mapping) - known):
                    what = f"'{cut(found.name)}' has no {field.removesuffix('_map')} '{cut(key)}'"
                    yield at(model, what, *STEPS, place, field)


def _mapped(step: Any, found: Model) -> Iterator[tuple[str, Any, set[str]]]:
    yield "input_map", step.input_map, {tensor.name for tensor in found.config.input}
    yield "output_map", step.output_map, {tensor.name for tensor in found.config.output}


@model_rule(
    "ensemble-unmapped",
    "error",
    why="Every input of a step that is not optional needs a tensor; Triton refuses the ensemble.",
    fix="Add it to input_map.",
)
def ensemble_unmapped(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, step, found in _steps(model, repository):
        if found is not None and not repository.completes(found):
            for tensor in found.config.input:
                if not tensor.optional and tensor.name not in step.input_map:
                    yield at(model, f"input '{cut(tensor.name)}' of '{cut(found.name)}' gets nothing", *STEPS, place)


@model_rule(
    "ensemble-unused",
    "error",
    why="Triton refuses an ensemble with an input that no step takes, an output that no step makes, or a tensor "
    "between steps that only one side knows or two steps make.",
    fix="Spell the tensor alike on both sides; take from a step only what is used.",
)
def ensemble_unused(model: Model, repository: Repository) -> Iterator[Spot]:
    if not model.is_ensemble or not model.config.ensemble_scheduling.step:
        return
    taken: set[str] = {name for _, step, _ in _steps(model, repository) for name in step.input_map.values()}
    made = Counter(name for _, step, _ in _steps(model, repository) for name in step.output_map.values())
    inputs = {tensor.name for tensor in model.config.input}
    outputs = {tensor.name for tensor in model.config.output}
    wrong = dict.fromkeys(inputs - taken, "is an input that no step takes")
    wrong |= dict.fromkeys(outputs - set(made), "is an output that no step makes")
    wrong |= dict.fromkeys(taken - inputs - set(made), "is taken and never made")
    wrong |= dict.fromkeys(set(made) - taken - outputs, "is made and never used")
    wrong |= {name: "is made by two steps" for name, count in made.items() if count > 1}
    for name, what in sorted(wrong.items()):
        yield at(model, f"'{cut(name)}' {what}", *STEPS)


@model_rule(
    "ensemble-type",
    "error",
    why="A tensor of an ensemble has one type and one shape; Triton refuses one that differs from its step's.",
    fix="Declare the same on both sides.",
)
def ensemble_type(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, step, found in _steps(model, repository):
        if found is None or not _declares(found, repository):
            continue
        for field in ("input", "output"):
            ours = {tensor.name: tensor for tensor in getattr(model.config, field)}
            theirs = {tensor.name: tensor for tensor in getattr(found.config, field)}
            for key, name in sorted(getattr(step, f"{field}_map").items()):
                if key in theirs and name in ours and (what := _differ(ours[name], theirs[key], model, found)):
                    yield at(model, f"{field} '{cut(name)}': {what}", *STEPS, place, f"{field}_map")


def _differ(ours: Any, theirs: Any, model: Model, found: Model) -> str:
    if ours.data_type and theirs.data_type and ours.data_type != theirs.data_type:
        return f"another data_type than that of '{cut(found.name)}'"
    if bool(model.config.max_batch_size) != bool(found.config.max_batch_size):
        return ""  # one of the shapes has a batch in it
    alike = len(ours.dims) == len(theirs.dims) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(ours.dims, theirs.dims, strict=True)
    )
    return "" if alike else f"dims {list(ours.dims)[:8]}, and {list(theirs.dims)[:8]} in '{cut(found.name)}'"


@model_rule(
    "ensemble-batch",
    "error",
    why="An ensemble may not allow larger batches than a step does.",
    fix="Lower the ensemble's max_batch_size.",
)
def ensemble_batch(model: Model, repository: Repository) -> Iterator[Spot]:
    for _, _, found in _steps(model, repository):
        if found is not None and 0 < found.config.max_batch_size < model.config.max_batch_size:
            what = f"max_batch_size {model.config.max_batch_size}; '{cut(found.name)}' allows"
            yield at(model, f"{what} {found.config.max_batch_size}", "max_batch_size")


@model_rule(
    "ensemble-extra",
    "error",
    why="An ensemble has no instances, optimization or warm-up of its own; Triton refuses them.",
    fix="Set them on the models of its steps.",
)
def ensemble_extra(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.is_ensemble:
        for name in ("instance_group", "optimization", "model_warmup"):
            if model.root.all(name):
                yield at(model, f"{name} on an ensemble", name)


@model_rule(
    "ensemble-levels",
    "warning",
    why="An ensemble hands a request's priority to every step; a step without levels serves in the order of arrival, "
    "and one with fewer takes a higher number for its default.",
    fix="Give all steps the same priority_levels.",
)
def ensemble_levels(model: Model, repository: Repository) -> Iterator[Spot]:
    found = [(place, it) for place, _, it in _steps(model, repository) if it is not None and not it.is_ensemble]
    levels = {it.name: it.config.dynamic_batching.priority_levels if it.batches else 0 for _, it in found}
    if any(levels.values()):
        for place, it in found:
            if levels[it.name] < max(levels.values()):
                what = f"'{cut(it.name)}' has {levels[it.name] or 'no'} priority levels, another step"
                yield at(model, f"{what} {max(levels.values())}", *STEPS, place)
