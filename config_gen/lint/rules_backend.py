"""Rules about who runs a model, and about the source of Python models and the options of gapless's own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from config_gen.lint.repository import PLATFORMS, Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule
from config_gen.lint.rules_files import is_stray
from decode.config import ConfigError
from decode.options import ServiceOptions

MISSPELT = {
    "onnx": "onnxruntime",
    "onnxruntime_onnx": "onnxruntime",
    "ort": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "trt": "tensorrt",
    "torch": "pytorch",
    "libtorch": "pytorch",
    "pytorch_libtorch": "pytorch",
    "tensorrt_llm": "tensorrtllm",
    "trtllm": "tensorrtllm",
    "py": "python",
}


@model_rule(
    "no-backend",
    "error",
    why="Neither backend nor platform is declared, and no version holds a file by whose name Triton knows the backend.",
    fix='Declare backend: "python", "onnxruntime", "tensorrt" or another.',
)
def no_backend(model: Model, repository: Repository) -> Iterator[Spot]:
    if not is_stray(model) and not model.backend and not model.config.platform and "." not in model.name:
        yield at(model, "no backend")


@model_rule(
    "platform",
    "error",
    why="Triton knows few platforms and refuses any other.",
    fix=f"Say backend: instead; platforms are {', '.join(PLATFORMS)}.",
)
def platform(model: Model, repository: Repository) -> Iterator[Spot]:
    config = model.config
    if config.platform and not config.backend and config.platform not in PLATFORMS:
        yield at(model, f"platform '{cut(config.platform)}'", "platform")


@model_rule(
    "backend-name",
    "error",
    why="No backend has this name, which looks like another's: unable to find backend library.",
    fix="Write the backend's own name.",
)
def backend_name(model: Model, repository: Repository) -> Iterator[Spot]:
    name = model.config.backend
    own = f"libtriton_{name}.so"
    inside = any(own in files for files in model.folders.values()) or (model.folder / own).exists()
    if name in MISSPELT and not inside and not model.config.runtime:
        yield at(model, f"backend '{name}'; '{MISSPELT[name]}' may be meant", "backend")


@model_rule(
    "label-file",
    "error",
    why="Triton reads the labels when it loads the model and fails without them.",
    fix="Put the file beside config.pbtxt, or leave label_filename out.",
)
def label_file(model: Model, repository: Repository) -> Iterator[Spot]:
    for place, output in enumerate(model.config.output):
        name = output.label_filename
        if name and not (model.folder / name).is_file():
            yield at(model, f"{cut(name)} is not there", "output", place, "label_filename")


@model_rule(
    "environment-file",
    "error",
    why="The Python backend unpacks EXECUTION_ENV_PATH before it starts the model and fails without it.",
    fix="Put the archive there, or leave the parameter out.",
)
def environment_file(model: Model, repository: Repository) -> Iterator[Spot]:
    path = model.config.parameters["EXECUTION_ENV_PATH"].string_value if _has_environment(model) else ""
    prefix = "$$TRITON_MODEL_DIRECTORY/"
    if model.backend == "python" and path.startswith(prefix) and not (model.folder / path[len(prefix) :]).exists():
        yield _parameter(model, "EXECUTION_ENV_PATH", f"{cut(path)} is not there")


def _has_environment(model: Model) -> bool:
    return "EXECUTION_ENV_PATH" in model.config.parameters


def _parameter(model: Model, key: str, what: str) -> Spot:
    found = [field for field in model.root.all("parameters") if field.at("key").text == key]
    return Spot(model.file, found[-1].line if found else 1, what)


@model_rule(
    "python-syntax",
    "error",
    why="Python cannot read the model's source; Triton fails to load it.",
    fix="Mend the line.",
)
def python_syntax(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.backend == "python" and isinstance(error := model.syntax, SyntaxError):
        yield Spot(_source_file(model), max(1, error.lineno or 1), cut(error.msg))


def _source_file(model: Model) -> str:
    return f"{model.name}/{model.served[-1]}/{model.config.default_model_filename or 'model.py'}"


@model_rule(
    "python-class",
    "error",
    why="The Python backend looks for a class TritonPythonModel and fails without it.",
    fix="Name the model's class TritonPythonModel.",
)
def python_class(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.backend == "python" and model.source and isinstance(tree := model.syntax, ast.Module):
        given = {name for node in ast.walk(tree) for name in _bound(node)}
        if not given & {"TritonPythonModel", "*"}:
            yield Spot(_source_file(model), 1, "no class TritonPythonModel")


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


@model_rule(
    "optimization-ignored",
    "warning",
    why="Accelerators and CUDA graphs are for ONNX, TensorRT and TensorFlow; the Python backend passes them by.",
    fix="Remove them; optimize inside the model.",
)
def optimization_ignored(model: Model, repository: Repository) -> Iterator[Spot]:
    wanted = model.config.optimization
    if model.backend == "python":
        for name in ("execution_accelerators", "cuda", "graph"):
            if wanted.HasField(name):
                yield at(model, f"optimization.{name} on a Python model", "optimization", name)


@model_rule(
    "chat-parameter",
    "error",
    why="gapless's decode loop refuses options that it does not know or that cannot be.",
    fix="Set the parameter as the message says.",
)
def chat_parameter(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.backend == "python" and re.search(r"^\s*from decode\.assembly import", model.source, re.MULTILINE):
        given = {name: value.string_value for name, value in model.config.parameters.items()}
        try:
            ServiceOptions.from_parameters(given)
        except (ConfigError, RecursionError) as error:
            key = re.match(r"parameters\.(\w+)", str(error))
            yield _parameter(model, key[1] if key else "tiers", cut(error, 200))


@model_rule(
    "engine-files",
    "error",
    why="gapless's engines are loaded by their stamp, engine.json; without it there is nothing to run.",
    fix="Run gapless build for the model.",
)
def engine_files(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.backend == "python" and re.search(r"^\s*from engines import", model.source, re.MULTILINE):
        for version in model.served:
            if "engine.json" not in model.names(version):
                yield at(model, f"version {version} has no engine.json")
