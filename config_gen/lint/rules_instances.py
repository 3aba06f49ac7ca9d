"""Rules about instances: where they run, how many there are, and the rate limiter between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config_gen.lint.flags import Flag
from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule, repository_rule

GROUP = "instance_group"
AUTO, GPU, CPU, MODEL = range(4)  # kinds
KINDS = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")


@model_rule(
    "cpu-with-gpus",
    "error",
    why="Triton refuses a group of KIND_CPU or KIND_MODEL that names GPUs.",
    fix="Remove gpus, or say KIND_GPU.",
)
def cpu_with_gpus(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, group in enumerate(model.config.instance_group):
        if group.gpus and group.kind in (CPU, MODEL):
            yield at(model, f"{KINDS[group.kind]} with gpus {list(group.gpus)[:8]}", GROUP, place, "gpus")


@model_rule(
    "auto-with-gpus",
    "note",
    why="Where a GPU is missing, KIND_AUTO becomes KIND_CPU and the model is refused, since KIND_CPU may name no GPUs.",
    fix="Say KIND_GPU, whose message names the GPU, or leave gpus out.",
)
def auto_with_gpus(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, group in enumerate(model.config.instance_group):
        if group.gpus and group.kind == AUTO:
            yield at(model, f"KIND_AUTO with gpus {list(group.gpus)[:8]}", GROUP, place, "gpus")


@model_rule(
    "profile",
    "error",
    why="Optimization profiles belong to TensorRT; Triton refuses them for any other model.",
    fix="Remove profile.",
)
def profile(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, group in enumerate(model.config.instance_group):
        if group.profile and model.backend != "tensorrt" and model.config.platform != "tensorrt_plan":
            yield at(model, f"profile on a model of {model.backend or 'no backend'}", GROUP, place, "profile")


@model_rule(
    "instance-count",
    "warning",
    why="A count below 1 becomes 1 without a word: an instance is not switched off by it.",
    fix="Give the number of instances for each device.",
)
def instance_count(model: Model, repository: Repository) -> Iterator[Spot]:
    groups = model.root.all(GROUP)
    for place, group in enumerate(model.config.instance_group):
        written = place < len(groups) and groups[place].all("count")
        if written and group.count < 1:
            yield at(model, f"count: {group.count}", GROUP, place, "count")


@model_rule(
    "passive-only",
    "error",
    why="No instance takes requests: the first request ends the whole server (segmentation fault in 2.51).",
    fix="Remove passive from at least one group.",
)
def passive_only(model: Model, repository: Repository) -> Iterator[Spot]:
    groups = model.config.instance_group
    if groups and all(group.passive for group in groups):
        yield at(model, "all instances are passive", GROUP, 0, "passive")


@model_rule(
    "python-instances",
    "note",
    why="Each instance of a Python model is a process of its own, with its own copy of the weights, and on a GPU a "
    "CUDA context of its own (about 1.4 GiB have been seen).",
    fix="Batch inside one instance, or charge the memory.",
)
def python_instances(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, group in enumerate(model.config.instance_group):
        if model.backend == "python" and group.count > 1 and group.kind in (AUTO, GPU):
            yield at(model, f"{group.count} processes on each device", GROUP, place, "count")


def _resources(model: Model) -> Iterator[tuple[int, Any]]:
    for place, group in enumerate(model.config.instance_group):
        for resource in group.rate_limiter.resources:
            yield place, resource


@model_rule(
    "rate-limiter-off",
    "warning",
    why="Triton's rate limiter is off unless the server is launched with --rate-limit=execution_count; resources and "
    "priorities of instances are then without effect.",
    fix="Launch with --rate-limit=execution_count, or remove rate_limiter.",
)
def rate_limiter_off(model: Model, repository: Repository) -> Iterator[Spot]:
    if repository.flags.value("rate-limit") != "execution_count":
        for place, group in enumerate(model.config.instance_group):
            if group.HasField("rate_limiter"):
                known = "" if repository.flags.file else " (no launch flags are known; see --args)"
                yield at(model, f"rate_limiter without --rate-limit{known}", GROUP, place, "rate_limiter")


@model_rule(
    "rate-resource",
    "error",
    why="An instance asks for more of a resource than there is, so that it could never run; Triton refuses to load it.",
    fix="Raise the count of --rate-limit-resource, or lower the demand.",
)
def rate_resource(model: Model, repository: Repository) -> Iterator[Spot]:
    if repository.flags.value("rate-limit") == "execution_count":
        limits = {name: count for _, name, count, device in _limits(repository) if not device}
        for place, resource in _resources(model):
            if resource.count > limits.get(resource.name, resource.count):
                what = f"{resource.count} of {cut(resource.name)}; there are {limits[resource.name]}"
                yield at(model, what, GROUP, place, "rate_limiter")


def _limits(repository: Repository) -> Iterator[tuple[Flag, str, int, str]]:
    """--rate-limit-resource=NAME:COUNT[:DEVICE]"""
    for flag in repository.flags.all("rate-limit-resource"):
        name, _, rest = flag.value.partition(":")
        count, _, device = rest.partition(":")
        if count.isdecimal():
            yield flag, name, int(count), device


@repository_rule(
    "rate-stray",
    "note",
    why="No model asks for the resource: it limits nothing, as when its name is misspelt in one of the places.",
    fix="Use the same name in rate_limiter.resources and in the flag.",
)
def rate_stray(repository: Repository) -> Iterator[Spot]:
    read = [model for model in repository.models.values() if model.config is not None]
    wanted = {resource.name for model in read for _, resource in _resources(model)}
    for flag, name, _, _ in _limits(repository):
        if name not in wanted:
            yield Spot(repository.flags.file, flag.line, f"resource {cut(name)} is used by no model")
