"""Packs weights for register tiles: 16 columns side by side, zeros up to whole blocks, int8 with a scale per column.

Must not know plans, pages or threads.
"""

from __future__ import annotations

import errno
import mmap
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from decode.executors.simd import LANES
from decode.executors.tiles import INT8_OFFSET
from decode.executors.weights import Linear

POPULATE_WRITE = 23  # of madvise(2); Python has no name for it


def padded(count: int) -> int:
    """The next multiple of 16."""
    return -(-count // LANES) * LANES


def huge(nbytes: int, held: bool = False) -> NDArray[np.uint8]:
    """Zeroed memory in large pages where the system has them: fewer address look-ups while weights stream through.

    With `held` the memory is really taken, now and not at the first use of each page, if the system (Linux 5.14) can do
    that. Raises MemoryError when there is not so much.
    """
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory stays small
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    if held:
        try:
            memory.madvise(POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise MemoryError(f"{nbytes >> 20} MiB of memory are not to be had ({error.strerror})") from None
    return np.frombuffer(memory, np.uint8)


class Arena:
    """One piece of memory, handed out front to back in multiples of 64 bytes."""

    def __init__(self, nbytes: int) -> None:
        self._memory, self.used = huge(nbytes), 0

    def keep(self, tensor: Tensor) -> int:
        """Copy a tensor in; returns its address."""
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        begin, self.used = self.used, self.used + -(-raw.nbytes // 64) * 64
        self._memory[begin : begin + raw.nbytes] = raw
        return int(self._memory.ctypes.data) + begin


@dataclass(frozen=True, slots=True)
class Packed:
    """Where a packed matrix lies (addresses) and its padded size."""

    weight: int
    blocks: int
    inputs: int
    bias: int
    start: int
    scales: int


def packed_bytes(outputs: int, inputs: int, element: int) -> int:
    """Room that `pack` needs at most."""
    return padded(outputs) * (padded(inputs) * element + 12) + 4 * 64


def pack(arena: Arena, linear: Linear, dtype: torch.dtype, zeros: int) -> Packed:
    """Pack one linear layer; `zeros`: address of enough float32 zeros to stand for what it lacks."""
    outputs, inputs = linear.weight.shape
    shape = (0, padded(inputs) - inputs, 0, padded(outputs) - outputs)
    weight = functional.pad(linear.weight.float(), shape)
    bias = zeros if linear.bias is None else arena.keep(functional.pad(linear.bias.float(), shape[2:]))
    blocks, depth = weight.shape[0] // LANES, weight.shape[1]
    if dtype != torch.int8:
        together = 2 if dtype == torch.bfloat16 else 1
        columns = weight.to(dtype).view(blocks, LANES, depth // together, together).transpose(1, 2)
        return Packed(arena.keep(columns), blocks, depth, bias, zeros, zeros)
    scales = weight.abs().amax(1).clamp(min=1e-30) / 127
    whole = (weight / scales[:, None]).round().to(torch.int8)
    start = -INT8_OFFSET * whole.sum(1, dtype=torch.int32)  # takes the offset of the activations out again
    columns = whole.view(blocks, LANES, depth // 4, 4).transpose(1, 2)
    return Packed(arena.keep(columns), blocks, depth, bias, arena.keep(start.int()), arena.keep(scales))


def pack_gate_up(arena: Arena, linear: Linear, dtype: torch.dtype, zeros: int) -> Packed:
    """Like `pack`; gate and up are each padded, so that both begin at a block."""
    gate, up = linear.weight.chunk(2)
    pad = padded(len(gate)) - len(gate)
    weight = torch.cat([functional.pad(part, (0, 0, 0, pad)) for part in (gate, up)])
    bias = linear.bias
    if bias is not None:
        bias = torch.cat([functional.pad(part, (0, pad)) for part in bias.chunk(2)])
    return pack(arena, Linear(weight, bias), dtype, zeros)
