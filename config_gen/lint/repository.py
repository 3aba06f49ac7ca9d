"""A model repository as its files say it: models, their configurations as text and as parsed, versions, launch flags.

Owns reading, within bounds, and raises for a whole repository only: what is wrong with one model is told of it. Must
not know rules.
"""

from __future__ import annotations

import ast
import os
import re
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from config_gen.lint import flags as launch
from config_gen.lint.pbtxt import Field, scan
from config_gen.triton.model_config import parse

CONFIG, MODEL_PY = "config.pbtxt", "model.py"
LARGEST = 1 << 20  # bytes of a text that is read; configurations of real models have some thousands
MOST = 10_000  # names of one folder that are looked at
# The file of a version by backend, where its name alone tells Triton the backend of a model that declares none.
MODEL_FILES = {"python": MODEL_PY, "onnxruntime": "model.onnx", "tensorrt": "model.plan", "pytorch": "model.pt"}
OTHER_FILES = ("model.savedmodel", "model.graphdef", "model.xml", "model.netdef", "model.dali", "model.json")
PLATFORMS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "ensemble": "ensemble",
}


class RepositoryError(ValueError):
    """A folder that is no repository of models, or flags that cannot be read."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why protobuf refuses a text; a line from 1, 0 where it names none."""

    line: int
    column: int
    message: str


@dataclass(frozen=True)
class Model:
    """One folder of the repository. `config` is a ModelConfig, None where there is none that can be read."""

    name: str  # of its folder
    folder: Path
    file: str  # the configuration, seen from the repository
    text: str
    config: Any
    refusal: Refusal | None
    trouble: str  # why there is no text, though there is a configuration
    folders: Mapping[str, tuple[str, ...]]  # beside the configuration, with the names in them

    @cached_property
    def root(self) -> Field:
        return scan(self.text)

    @cached_property
    def versions(self) -> tuple[int, ...]:
        """Folders that Triton takes for versions: a number without leading zeros."""
        return tuple(sorted(int(name) for name in self.folders if re.fullmatch(r"0|[1-9]\d{0,17}", name)))

    @cached_property
    def served(self) -> tuple[int, ...]:
        """Versions that the version policy picks."""
        if self.config is None:
            return self.versions[-1:]
        policy = self.config.version_policy
        choice = policy.WhichOneof("policy_choice")
        if choice == "all":
            return self.versions
        if choice == "specific":
            return tuple(version for version in self.versions if version in policy.specific.versions)
        count = policy.latest.num_versions if choice == "latest" else 1
        return self.versions[-max(1, count) :]

    @cached_property
    def backend(self) -> str:
        """As declared, or as its files tell; empty where nothing does."""
        config = self.config
        if config is not None and (config.backend or config.platform):
            return str(config.backend or PLATFORMS.get(config.platform, ""))
        names = {name for version in self.versions for name in self.folders[str(version)]}
        return next((backend for backend, file in MODEL_FILES.items() if file in names), "")

    @property
    def is_ensemble(self) -> bool:
        return bool(self.config.platform == "ensemble")

    @property
    def decoupled(self) -> bool:
        return bool(self.config.model_transaction_policy.decoupled)

    @property
    def batches(self) -> bool:
        """Whether Triton's dynamic batcher works for it."""
        return bool(self.config.HasField("dynamic_batching") and self.config.max_batch_size > 0)

    @property
    def instances(self) -> int:
        """On each device; a group without a count has one."""
        return sum(max(1, group.count) for group in self.config.instance_group) or 1

    @cached_property
    def source(self) -> str:
        """What the newest version's model.py says; empty where there is none that can be read."""
        if not self.served:
            return ""
        name = (self.config.default_model_filename if self.config is not None else "") or MODEL_PY
        try:
            return read_text(self.folder / str(self.served[-1]) / name)
        except (OSError, ValueError):
            return ""

    @cached_property
    def syntax(self) -> ast.Module | SyntaxError | None:
        """The source as Python understands it; None where it is beyond Python's own parser."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.source)
        except SyntaxError as error:
            return error
        except (ValueError, RecursionError, MemoryError):
            return None

    def names(self, version: int) -> tuple[str, ...]:
        return self.folders[str(version)]


@dataclass(frozen=True)
class Repository:
    folder: Path
    models: Mapping[str, Model]
    flags: launch.Flags

    def completes(self, model: Model) -> bool:
        """Whether Triton fills in what the configuration leaves out, from the model itself."""
        if self.flags.has("disable-auto-complete-config") or model.is_ensemble:
            return False
        return model.backend != "python" or "auto_complete_config" in model.source


def read(folder: Path, arguments: Path | None = None) -> Repository:
    """The repository in `folder`, with the flags of `arguments`, or of FOLDER/serve.args where that is there.

    Raises RepositoryError when it holds no model, or a file of flags cannot be read.
    """
    flags = _flags(folder, arguments)
    name = flags.value("model-config-name")
    models = {path.name: _model(path, name) for path in _folders(folder)}
    if not any(model.text or model.trouble or model.versions for model in models.values()):
        hint = "it is a model itself; give the folder above it" if (folder / CONFIG).exists() else f"no */{CONFIG}"
        raise RepositoryError(f"{folder} holds no model ({hint})")
    return Repository(folder, models, flags)


def _flags(folder: Path, arguments: Path | None) -> launch.Flags:
    path = arguments or folder / launch.FILE
    if arguments is None and not os.path.lexists(path):
        return launch.Flags()
    try:
        return launch.parse(read_text(path), launch.FILE if arguments is None else str(arguments.absolute()))
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{path}: {why(error)}; give a file of tritonserver's flags, one a line") from None


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())[:MOST]
    except OSError as error:
        raise RepositoryError(f"{str(folder)[:200]}: {why(error)}; give a folder of models") from None


def _model(folder: Path, config_name: str) -> Model:
    """`config_name`: of --model-config-name, which takes configs/NAME.pbtxt where a model has one."""
    special = f"configs/{config_name}.pbtxt"
    file = special if config_name and (folder / special).is_file() else CONFIG
    text, trouble, config, refusal = "", "", None, None
    if os.path.lexists(folder / file):
        try:
            text = read_text(folder / file)
        except (OSError, ValueError) as error:
            trouble = why(error)
    if not trouble:
        config, refusal = parsed(text)
    return Model(folder.name, folder, f"{folder.name}/{file}", text, config, refusal, trouble, _inside(folder))


def _inside(folder: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {path.name: _names(path) for path in sorted(folder.iterdir())[:MOST] if path.is_dir()}
    except OSError:  # as good as empty: Triton cannot look into it either
        return {}


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder))[:MOST])
    except OSError:
        return ()


def parsed(text: str) -> tuple[Any, Refusal | None]:
    """The ModelConfig of a text, or why there is none."""
    from google.protobuf import text_format

    try:
        return parse(text.encode("utf-8", "replace").decode()), None  # Triton itself takes bytes that are not UTF-8
    except text_format.ParseError as error:
        line, column = error.GetLine() or 0, error.GetColumn() or 0
        return None, Refusal(line, column, re.sub(r"^\d+:\d+ : ", "", str(error)))
    except (ValueError, RecursionError) as error:  # a number or a string that no field can hold
        return None, Refusal(0, 0, str(error))


def read_text(path: Path) -> str:
    """Of a regular file of at most LARGEST bytes; bytes that are not UTF-8 stay apart, as surrogates.

    Raises OSError, or ValueError when it is larger.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(None, "is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(None, "is no file")
    if found.st_size > LARGEST:
        raise ValueError(f"has {found.st_size} bytes; at most {LARGEST} are read")
    return path.read_bytes().decode("utf-8", "surrogateescape")


def why(error: Exception) -> str:
    """In a few words."""
    return (getattr(error, "strerror", None) or str(error)).strip()
