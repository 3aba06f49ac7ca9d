"""The order of a step: every layer's phases, and one C-callable entry for each way weights are held.

Compiled once for this CPU and kept on disk, in a folder named after the sources. Must not know plans, files or torch.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import carray, cfunc, njit, types

from decode.executors.attention import attend, place_rows
from decode.executors.kernels import (
    BLOCK_ROW,
    LINEAR,
    PHASES_PER_LAYER,
    STEP,
    gate_rows,
    lap,
    multiply,
    norm_rows,
    seal_mixed_rows,
)
from decode.executors.simd import address, cycles, fetch_add, pointer
from decode.executors.tiles import BFLOAT, BYTE, FLOAT, HALF, PAIR

SOURCES = ("simd.py", "tiles.py", "kernels.py", "attention.py", "cpu_step.py")


@njit
def run(where: Any, kind: Any, kv_kind: Any) -> None:
    """What each thread of the team does. `kind` and `kv_kind` stand for what weights and pages hold."""
    step = carray(pointer(address(where)), 1, STEP)[0]
    linears = carray(pointer(step.linears), 4 * step.layers + 1, LINEAR)
    me = fetch_add(step.counters, 1)  # the first phase only gives threads their numbers
    if me == 0:
        step.clock = cycles()
    for layer in range(step.layers):
        phase = 1 + layer * PHASES_PER_LAYER
        norm_rows(step, phase, me, 2 * layer, step.tokens, False)
        step.other += lap(step, me)
        attention_block(step, phase + 1, me, kind, kv_kind, layer, linears)
        norm_rows(step, phase + 6, me, 2 * layer + 1, step.tokens, False)
        step.other += lap(step, me)
        multiply(step, phase + 7, kind, linears[4 * layer + 2], step.tokens, step.act, step.gate_up, False)
        step.linear += lap(step, me)
        gate_rows(step, phase + 8, me)
        step.other += lap(step, me)
        multiply(step, phase + 9, kind, linears[4 * layer + 3], step.tokens, step.act, step.x, True)
        step.linear += lap(step, me)
    phase = 1 + step.layers * PHASES_PER_LAYER
    norm_rows(step, phase, me, 2 * step.layers, step.draws, True)
    step.other += lap(step, me)
    multiply(step, phase + 1, kind, linears[4 * step.layers], step.draws, step.act, step.logits, False)
    step.linear += lap(step, me)


@njit
def attention_block(step: Any, phase: int, me: int, kind: Any, kv_kind: Any, layer: int, linears: Any) -> None:
    """From normed rows to x plus attention."""
    qkv = linears[4 * layer]
    multiply(step, phase, kind, qkv, step.tokens, step.act, step.qkv, False)
    step.linear += lap(step, me)
    place_rows(step, phase + 1, kv_kind, layer, qkv.blocks * BLOCK_ROW)
    step.other += lap(step, me)
    attend(step, phase + 2, me, kv_kind, layer)
    step.attention += lap(step, me)
    if step.act_bytes < 4:
        seal_mixed_rows(step, phase + 3)
        step.other += lap(step, me)
    inputs = step.act if step.act_bytes < 4 else step.mixed
    multiply(step, phase + 4, kind, linears[4 * layer + 1], step.tokens, inputs, step.x, True)
    step.linear += lap(step, me)


def step_fp32(where: Any) -> None:
    """float32 weights and pages."""
    run(where, FLOAT(0), FLOAT(0))


def step_bf16(where: Any) -> None:
    """bfloat16 weights, activations and pages; sums in float32."""
    run(where, PAIR(0), BFLOAT(0))


def step_fp16(where: Any) -> None:
    """IEEE half weights and pages; sums in float32."""
    run(where, HALF(0), HALF(0))


def step_int8(where: Any) -> None:
    """int8 weights and activations, IEEE half pages."""
    run(where, BYTE(0), HALF(0))


STEPS: dict[str, Callable[[Any], None]] = {
    "fp32": step_fp32, "bf16": step_bf16, "fp16": step_fp16, "int8": step_int8,
}  # fmt: skip


def compiled(weights: str) -> int:
    """Address of the C function void(STEP *) for a kind of weights; every thread of the team is to call it once."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_cache_dir())
    try:
        return int(cfunc(types.void(types.voidptr), cache=True)(STEPS[weights]).address)
    finally:
        numba.config.CACHE_DIR = before


def _cache_dir() -> Path:
    """A writable folder of its own for every version of the sources: numba itself watches only one file of them."""
    here = Path(__file__).parent
    version = hashlib.sha256(b"".join((here / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for base in (user, Path(tempfile.gettempdir())):
        folder = base / "gapless" / version
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError(f"no folder to keep compiled kernels in: neither {user} nor {tempfile.gettempdir()} can be written")
