"""The safetensors format, read and written one tensor at a time, so that a model never has to fit in memory.

Works on raw bytes: any stored type passes through unchanged, bfloat16 included. Must not know models.
Format: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from builders.errors import BuildError

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
CHUNK = 64 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor still on disk: `read()` gives its bytes, contiguous, row-major, little endian."""

    name: str
    dtype: str  # as safetensors names it: F32, F16, BF16
    shape: tuple[int, ...]
    read: Callable[[], memoryview]

    @property
    def size(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def open_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises BuildError when the file is damaged or truncated."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
            if length > size - 8:
                raise BuildError(f"{path}: truncated: {size} bytes do not hold its header")
            header = json.loads(file.read(length))
            body = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[8 + length :]
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(path, name, entry, body) for name, entry in entries.items()}
    except FileNotFoundError:
        raise BuildError(f"{path}: no such file") from None
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror}") from None
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, BuildError):
            raise
        raise BuildError(f"{path}: not a safetensors file: its header cannot be read") from None


def _tensor(path: Path, full_name: str, entry: dict[str, Any], body: memoryview) -> Tensor:
    dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    name = full_name if len(full_name) <= 100 else f"{full_name[:97]}..."
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise BuildError(f"{path}: {name}: shape and data_offsets must be integers >= 0")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BuildError(f"{path}: {name}: type {dtype} is not supported; {', '.join(ITEM_BYTES)}")
    if end > len(body):
        raise BuildError(f"{path}: truncated: {name} ends at byte {end} of {len(body)}")
    if not 0 <= start <= end or end - start != prod(shape) * ITEM_BYTES[dtype]:
        raise BuildError(f"{path}: {name}: {end - start} bytes do not hold {list(shape)} of {dtype}")
    return Tensor(full_name, dtype, shape, lambda: body[start:end])


def write_tensors(path: Path, tensors: Sequence[Tensor], advance: Callable[[int], None]) -> None:
    """Write one file, tensors in the order given; `advance(bytes)` is called as bytes are written."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        offsets = [offset, offset + tensor.size]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        offset += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            data = tensor.read()
            for at in range(0, tensor.size, CHUNK):
                advance(file.write(data[at : at + CHUNK]))
