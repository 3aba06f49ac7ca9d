"""`engine.json`: what an engine was built from, for which machine, and how it is fed.

Written last by the builder and read first by whoever loads the engine: a stamp that does not fit the files or the
machine is refused with the command that rebuilds.

Must not know how engines are built or run.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from engines.cpu import adds_int8_exactly
from engines.errors import EngineError

FILE = "engine.json"
TENSORRT = ("tensorrt", "tensorrt_rtx")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named input or output; dimensions that vary are -1, the first is the batch."""

    name: str
    dtype: str  # as numpy names it
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Feed:
    """How items become inputs: `kind` is text, image or arrays.

    Texts: `max_length` tokens, longer ones are cut. Pictures: `size` pixels square, channels (value - mean) / std.
    """

    kind: Literal["text", "image", "arrays"]
    max_length: int = 0
    size: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Stamp:
    """The whole record. `*_buckets`: batch sizes and lengths that inputs are padded to; empty where any shape does."""

    model: str
    source: str
    source_hash: str
    precision: Annotated[str, Field(pattern="^(fp32|fp16|int8)$")]
    runtime: Annotated[str, Field(pattern="^(onnxruntime|tensorrt|tensorrt_rtx)$")]
    file: str
    feed: Feed
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: Annotated[int, Field(ge=1, le=1024)]
    tools: Mapping[str, str]  # package -> version
    files: Mapping[str, str]  # name -> SHA-256
    rebuild: str  # the command
    build_key: str  # hash of everything that went into the build
    tokenizer: str = ""  # its file
    run_cost: tuple[float, float] | None = None  # of a text model in ms: of a run, and of each padded token in it
    exact_int8: bool = True  # judged where products of int8 are added exactly; see engines.cpu
    profile: str = ""  # latency by batch and length, where it was measured
    batch_buckets: tuple[int, ...] = ()
    length_buckets: tuple[int, ...] = ()
    compute_capabilities: tuple[str, ...] = ()
    portable: tuple[str, ...] = ()  # version, hardware: what the plan is compatible with beyond its own
    profiles: tuple[Mapping[str, Any], ...] = ()
    gate: Mapping[str, Any] = field(default_factory=dict)
    format: Literal[1] = 1  # another number means: build again

    def write(self, folder: Path) -> None:
        """Into `folder`; the caller moves it into place last."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Stamp:
        """Raises EngineError when there is none, or it is of another format."""
        path = folder / FILE
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except FileNotFoundError:
            raise EngineError(f"{folder} holds no engine; run gapless build") from None
        except OSError as error:
            raise EngineError(f"{path}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise EngineError(f"{path}: {where}: {first['msg']}; run gapless build again") from None

    def check(self, folder: Path) -> None:
        """Raise EngineError unless the files are those that were built and this machine is one they were built for."""
        self.check_files(folder)
        if self.runtime in TENSORRT:
            self._check_tensorrt(folder)
        elif self.precision == "int8" and self.exact_int8 and not adds_int8_exactly():
            raise self._refused(
                folder, "was judged on a processor that adds int8 exactly, which this one (no VNNI) does not"
            )

    def check_files(self, folder: Path) -> None:
        """Raise EngineError unless the files are those that were built."""
        for name in filter(None, (self.file, self.tokenizer, self.profile)):
            if name not in self.files:
                raise self._refused(folder, f"{name} is not among the files that were built")
        for name, known in self.files.items():
            path = folder / name
            if not path.is_file():
                raise self._refused(folder, f"{name} is missing")
            if digest(path) != known:
                raise self._refused(folder, f"{name} is not the file that was built")

    def _check_tensorrt(self, folder: Path) -> None:
        built = self.tools.get(self.runtime, "")
        try:
            here = str(importlib.import_module(self.runtime).__version__)
        except ImportError:
            raise self._refused(folder, f"needs {self.runtime} {built}, which is not installed here") from None
        if here != built and not ("version" in self.portable and _newer(here, built)):
            raise self._refused(folder, f"was built with {self.runtime} {built}, and {here} is installed here")
        found = compute_capability()
        if found is None:
            raise self._refused(
                folder, f"was built for a GPU ({', '.join(self.compute_capabilities)}), and none is here"
            )
        if found not in self.compute_capabilities and not ("hardware" in self.portable and _parts(found) >= (8, 0)):
            built_for = ", ".join(self.compute_capabilities)
            raise self._refused(folder, f"was built for compute capability {built_for}, and this GPU has {found}")

    def _refused(self, folder: Path, why: str) -> EngineError:
        return EngineError(f"{folder / self.file}: {why}; rebuild: {self.rebuild}")


def _newer(here: str, built: str) -> bool:
    return _parts(here) >= _parts(built)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compute_capability() -> str | None:
    """Of the GPU that would be used, as `8.9`; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{major}.{minor}"
