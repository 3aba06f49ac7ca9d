"""Rules about a model's folder: its name, its versions, the files in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config_gen.lint.repository import CONFIG, MODEL_FILES, OTHER_FILES, Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule

STRICT = ("python", "onnxruntime", "tensorrt")  # backends that look for one file and nothing else


def is_stray(model: Model) -> bool:
    """Whether the folder shows no sign of a model."""
    known = {*MODEL_FILES.values(), *OTHER_FILES}
    files = {name for version in model.versions for name in model.names(version)}
    return not model.text.strip() and not model.trouble and not known & files


@model_rule(
    "config-unreadable",
    "error",
    why=f"Triton reads {CONFIG} before anything else; a folder of that name ends the whole server (std::length_error).",
    fix=f"Make {CONFIG} a readable text file.",
    unread=True,
)
def config_unreadable(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.trouble:
        yield Spot(model.file, 1, f"cannot be read: {cut(model.trouble)}")


@model_rule(
    "stray-folder",
    "error",
    why="Triton takes every folder of the repository for a model and fails to load this one; by default the server "
    "then ends.",
    fix="Move the folder out of the repository, or give the model its configuration and version.",
    unread=True,
)
def stray_folder(model: Model, repository: Repository) -> Iterator[Spot]:
    if is_stray(model):
        yield Spot(model.name, 1, f"{cut(model.name)}/ has no {CONFIG} and no version with a file that Triton knows")


@model_rule(
    "name-mismatch",
    "error",
    why="Triton refuses a model whose name differs from its folder's.",
    fix="Rename the folder or the model, or leave name out.",
)
def name_mismatch(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.config.name not in ("", model.name):
        yield at(model, f"name is '{cut(model.config.name)}', the folder is '{cut(model.name)}'", "name")


@model_rule(
    "no-version",
    "error",
    why="A model is loaded from a folder named by a number; without one nothing is loaded. Git keeps no empty folders, "
    "so that of an ensemble is lost in a clone.",
    fix="Add a folder 1 (with a .gitkeep in it where it would be empty).",
)
def no_version(model: Model, repository: Repository) -> Iterator[Spot]:
    if not model.versions and not is_stray(model):
        others = ", ".join(model.folders)
        yield at(model, f"no version folder{f'; there are {cut(others)}' if others else ''}")


@model_rule(
    "version-name",
    "warning",
    why="Versions are numbers without leading zeros; Triton passes other folders by without a word.",
    fix="Name the folder by a number, or take it out of the model's folder.",
)
def version_name(model: Model, repository: Repository) -> Iterator[Spot]:
    if not model.versions:
        return  # told by no-version
    expected = model.config.default_model_filename or MODEL_FILES.get(model.backend)
    for name, files in model.folders.items():
        if not re.fullmatch(r"0|[1-9]\d*", name) and (name.isdigit() or (expected and expected in files)):
            yield Spot(model.file, 1, f"folder {cut(name)}/ looks like a version and is none")


@model_rule(
    "version-policy",
    "error",
    why="Without one version that the policy allows, the model is not loaded.",
    fix="Name versions that are there in version_policy, or leave it out.",
)
def version_policy(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.versions and not model.served:
        wanted = ", ".join(map(str, model.config.version_policy.specific.versions))
        there = ", ".join(map(str, model.versions))
        yield at(model, f"asks for version {cut(wanted)}; there is {cut(there)}", "version_policy")


@model_rule(
    "version-missing",
    "warning",
    why="Triton loads the versions that are there and counts the model as ready; requests for the missing one fail.",
    fix="Add the version, or take it out of version_policy.",
)
def version_missing(model: Model, repository: Repository) -> Iterator[Spot]:
    wanted = model.config.version_policy.specific.versions
    missing = sorted(set(wanted) - set(model.versions))
    if missing and model.served:
        yield at(model, f"version {cut(', '.join(map(str, missing)))} is not there", "version_policy")


@model_rule(
    "old-version",
    "note",
    why="Without a version_policy only the highest version is loaded.",
    fix="Say version_policy { all {} } to serve all, or remove the old ones.",
)
def old_version(model: Model, repository: Repository) -> Iterator[Spot]:
    idle = set(model.versions) - set(model.served)
    if idle and model.config.version_policy.WhichOneof("policy_choice") is None:
        yield at(model, f"version {cut(', '.join(map(str, sorted(idle))))} is not served, {model.served[-1]} is")


@model_rule(
    "no-model-file",
    "error",
    why="The backend finds nothing to load. With the Python backend the load never ends: the model stays LOADING, and "
    "a server that loads it at start never listens.",
    fix="Put the file there, or name the one that is there in default_model_filename.",
)
def no_model_file(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.backend not in STRICT or is_stray(model) or model.config.cc_model_filenames:
        return
    expected = model.config.default_model_filename or MODEL_FILES[model.backend]
    for version in model.served:
        if expected not in model.names(version):
            there = ", ".join(model.names(version)) or "nothing"
            yield at(
                model, f"version {version} has no {cut(expected)}; it holds {cut(there)}", "default_model_filename"
            )
