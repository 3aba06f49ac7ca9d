"""Builds what a served language model is loaded from: one directory, the same for every source and family.

    model.safetensors    every tensor, Hugging Face names, contiguous, in the source's type (a GGUF's: fp32)
    config.json          Hugging Face keys, none left to a default, plus `qkv_bias`, `o_bias`, `qk_norm`, `dtype`,
                         `bos_token_id`, `eos_token_id` (a list) and `special_tokens` (their strings, for templates)
    tokenizer.json       of the `tokenizers` library; its post-processor adds BOS where the model wants it
    chat_template.jinja  absent when the model has none
    build.json           what it was built from; written last, so a directory with it is whole

Files appear all at once at the end, beside whatever else the directory holds. Must not know Triton or the decode loop.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.errors import BuildError
from builders.family import expected_shapes
from builders.hf_model import HfDirectory
from builders.placing import locked, place, scratch_in
from builders.progress import Progress, quiet
from builders.safetensors_file import Tensor, write_tensors
from builders.source import find, resolve

FORMAT = 1  # of the built directory; another number means: build again
STAMP = "build.json"
BUILT_FILES = ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja")
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Built:
    """What was built, or was found built already."""

    source: str
    out: Path
    architecture: str
    num_layers: int
    num_parameters: int
    num_bytes: int
    dtype: str
    seconds: float
    up_to_date: bool


@dataclass(frozen=True, slots=True)
class _Model:
    """A source read, its tensors still on disk."""

    config: dict[str, Any]
    tensors: list[Tensor]
    tokenizer: str
    chat_template: str | None


def built_from(out: Path) -> str:
    """The source of what is built in `out`; "" when that is not known."""
    stamp = _stamp_in(out)
    return str(stamp["source"]) if stamp is not None else ""


def build_llm(
    source: str,
    out: Path,
    *,
    force: bool = False,
    check: Callable[[Path], None] | None = None,
    progress: Progress = quiet,
) -> Built:
    """Build `source` into the directory `out`, unless it is there already and nothing changed.

    `check` may look at the finished files before they are moved into place, and refuse them by raising ValueError.
    Raises BuildError; `out` is then as it was.
    """
    started = time.monotonic()
    try:
        with locked(out):
            stamp = None if force else _stamp_in(out)
            if stamp is not None and stamp["source"] == source:
                here = find(source)  # a wheel that is no longer here cannot have changed: no need to fetch it again
                if here is None or _fingerprint(here) == stamp["files"]:
                    return _summary(source, out, stamp["summary"], started, up_to_date=True)
            progress(f"finding {source}", 0, 0)
            path = resolve(source)
            files = _fingerprint(path)
            progress(f"reading {source}", 0, 0)
            model = _read(path)
            summary = _summary_of(model)
            with scratch_in(out, summary["num_bytes"]) as scratch:
                _write(model, scratch, progress)
                _accepted(check, scratch, path)
                sizes = {file.name: file.stat().st_size for file in scratch.iterdir()}
                record = {"format": FORMAT, "source": source, "files": files, "built": sizes, "summary": summary}
                (scratch / STAMP).write_text(json.dumps(record, indent=1) + "\n")
                place(scratch, out, BUILT_FILES, STAMP)
            return _summary(source, out, summary, started, up_to_date=False)
    except OSError as error:
        raise BuildError(f"{error.filename or out}: {error.strerror}") from None


def _read(path: Path) -> _Model:
    if path.is_dir():
        model: Any = HfDirectory(path)
        tokenizer, chat_template = model.tokenizer_json(), model.chat_template()
        special, eos, bos = model.special_tokens(), model.eos_token_ids(), model.raw.get("bos_token_id")
    else:
        from builders import gguf_tokenizer  # the GGUF library is needed for such files only
        from builders.gguf_model import GgufFile

        model = GgufFile(path)
        tokenizer, chat_template = gguf_tokenizer.build_tokenizer(model).to_str(), model.text("tokenizer.chat_template")
        special, eos = gguf_tokenizer.special_tokens(model), gguf_tokenizer.eos_token_ids(model)
        bos = gguf_tokenizer.token_id(model, "bos")
    config = model.config()
    tensors = _checked(model.open_tensors(config), config, path)
    weights: Counter[str] = Counter()
    for tensor in tensors:
        weights[DTYPES[tensor.dtype]] += tensor.size
    config |= {"dtype": weights.most_common(1)[0][0], "bos_token_id": bos, "eos_token_id": eos}
    return _Model(config | {"special_tokens": special}, tensors, tokenizer, chat_template)


def _checked(tensors: dict[str, Tensor], config: dict[str, Any], path: Path) -> list[Tensor]:
    """The tensors in forward order; exactly those the config promises, in the shapes it promises."""
    ordered = []
    for name, shape in expected_shapes(config):  # stops at the first that is missing, however many are promised
        if name not in tensors:
            raise BuildError(f"{path}: tensor {name} is missing")
        if tensors[name].shape != shape:
            found = list(tensors[name].shape)
            raise BuildError(f"{path}: tensor {name} has shape {found}; its config promises {list(shape)}")
        ordered.append(tensors[name])
    for name in tensors.keys() - {tensor.name for tensor in ordered}:
        raise BuildError(f"{path}: tensor {name} is not part of a {config['architectures'][0]} with this config")
    return ordered


def _write(model: _Model, scratch: Path, progress: Progress) -> None:
    total, done = sum(tensor.size for tensor in model.tensors), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("writing weights", done, total)

    write_tensors(scratch / "model.safetensors", model.tensors, advance)
    (scratch / "config.json").write_text(json.dumps(model.config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (scratch / "tokenizer.json").write_text(model.tokenizer, "utf-8")
    if model.chat_template is not None:
        (scratch / "chat_template.jinja").write_text(model.chat_template, "utf-8")


def _accepted(check: Callable[[Path], None] | None, scratch: Path, source: Path) -> None:
    try:
        if check is not None:
            check(scratch)
    except ValueError as error:  # say which source is at fault; the scratch files will be gone
        raise BuildError(str(error).replace(str(scratch), str(source))) from None


def _fingerprint(path: Path) -> dict[str, list[Any]]:
    """Size, time of change and a hash of the beginning of each file that a build reads."""
    kinds = (".safetensors", ".json", ".jinja")
    files = sorted(p for p in path.iterdir() if p.suffix in kinds) if path.is_dir() else [path]
    return {str(file): _fingerprint_file(file) for file in files}


def _fingerprint_file(file: Path) -> list[Any]:
    stat = file.stat()
    with file.open("rb") as opened:
        return [stat.st_size, stat.st_mtime_ns, hashlib.sha256(opened.read(HEAD_BYTES)).hexdigest()]


def _stamp_in(out: Path) -> dict[str, Any] | None:
    """The record of the build in `out`, None when there is none or one of its files is not as it was written."""
    try:
        stamp = json.loads((out / STAMP).read_text())
        whole = stamp["format"] == FORMAT and all((out / n).stat().st_size == s for n, s in stamp["built"].items())
        return {key: stamp[key] for key in ("source", "files", "summary")} if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _summary_of(model: _Model) -> dict[str, Any]:
    return {
        "architecture": model.config["architectures"][0],
        "num_layers": model.config["num_hidden_layers"],
        "num_parameters": sum(tensor.size // (4 if tensor.dtype == "F32" else 2) for tensor in model.tensors),
        "num_bytes": sum(tensor.size for tensor in model.tensors),
        "dtype": model.config["dtype"],
    }


def _summary(source: str, out: Path, summary: dict[str, Any], started: float, *, up_to_date: bool) -> Built:
    return Built(source, out, **summary, seconds=time.monotonic() - started, up_to_date=up_to_date)
