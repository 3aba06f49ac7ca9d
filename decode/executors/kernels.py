"""What threads do within a step, compiled by numba: share out work, wait for it; norms, activations, products.

A step is a row of phases; within a phase threads claim pieces of work, and go on when all its pieces are done. Sizes
and addresses come in a `STEP` record. Must not know plans, files or torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from decode.executors.simd import (
    LANES,
    cycles,
    fetch_add,
    norm_row,
    pointer,
    quantize_row,
    read_shared,
    relax,
    round_row,
    sched_yield,
    silu_multiply_row,
)
from decode.executors.tiles import INT8_OFFSET, MAX_BLOCKS, MAX_ROWS, MAX_SUMS, MAX_SUMS_INT8, spaced, tile

SLAB = 4 * MAX_ROWS  # rows that one thread takes at a time through one strip of weights
SPINS = 100
PIECE_BYTES, PARTS_PER_THREAD = 131072, 16  # weights that make a piece of work, and the most pieces of one product
PHASE_BYTES = 64  # a cache line for each phase: pieces claimed, pieces done
PHASES_PER_LAYER = 10
BLOCK_ROW = 4 * LANES  # bytes of one row of a block: 16 float32, or of as many weights as a tile takes at once

_COUNTS = (
    "team",  # threads
    "layers", "heads", "kv_heads", "head_dim", "hidden_size", "hidden", "inner",  # hidden, inner: padded to 16
    "act_bytes", "weight_bytes", "qk_norm",  # of one number that goes into a product
    "kv_bytes", "num_pages", "page_size", "page_blocks", "value_at", "head_page_bytes", "head_pad",
    "mixed_width",
    "tokens", "draws", "tiles", "tile_tokens", "tile_rows", "score_row",
)  # fmt: skip
_ADDRESSES = (
    "counters", "linears", "norms", "qk_norms", "zeros", "kv",  # the model and its pages
    "rotations", "positions", "slots", "first_row", "keys", "pages", "pages_row", "draw_rows",  # the batch
    "tile_chunk", "tile_start",
    "x", "spare", "act", "act_scales", "qkv", "q", "mixed", "gate_up", "scores", "outs", "logits",  # scratch
)  # fmt: skip
PARTS = ("linear", "attention", "other")  # cycles that thread 0 spent

STEP = np.dtype(
    [(name, np.int64) for name in (*_COUNTS, *_ADDRESSES, "clock", *PARTS)]
    + [("eps", np.float32), ("score_scale", np.float32)],
    align=True,
)
# A packed matrix of 16 * `blocks` columns and `inputs` rows; see tiles.tile for the rest.
LINEAR = np.dtype([(name, np.int64) for name in ("weight", "blocks", "inputs", "bias", "start", "scales")])


@njit(inline="always")
def floats(at: int, count: int) -> Any:
    """View `count` float32 at an address."""
    return carray(pointer(at), count, np.float32)


@njit(inline="always")
def integers(at: int, count: int) -> Any:
    """View `count` int64 at an address."""
    return carray(pointer(at), count, np.int64)


@njit
def claim(step: Any, phase: int) -> int:
    """The next piece of work of a phase that nobody has."""
    return fetch_add(step.counters + phase * PHASE_BYTES, 1)


@njit
def done(step: Any, phase: int) -> None:
    """A claimed piece is ready."""
    fetch_add(step.counters + phase * PHASE_BYTES + 8, 1)


@njit
def wait(step: Any, phase: int, pieces: int) -> None:
    """Wait for the pieces of a phase, not for threads: one that lost its core holds nobody up unless it is at work."""
    spins = 0
    while read_shared(step.counters + phase * PHASE_BYTES + 8) < pieces:
        spins += 1
        if spins < SPINS:
            relax()
        else:
            sched_yield()


@njit
def lap(step: Any, me: int) -> int:
    """Cycles since the last lap of thread 0; 0 for others."""
    if me != 0:
        return 0
    now = cycles()
    spent = now - step.clock
    step.clock = now
    return spent


@njit
def blocks_at_once(rows: int, left: int, sums: int) -> int:
    """How many blocks a tile of so many rows takes: 1, 2 or 4."""
    most = min(left, MAX_BLOCKS, sums // rows)
    return 4 if most >= 4 else 2 if most >= 2 else 1


@njit
def multiply(step: Any, phase: int, kind: Any, linear: Any, rows: int, a: int, out: int, add: bool) -> None:
    """out [rows, 16 * blocks] = a [rows, inputs] @ weight + bias (+ out, if `add`). Pieces: columns of a slab."""
    sums = MAX_SUMS_INT8 if step.act_bytes == 1 else MAX_SUMS
    block_bytes = linear.inputs * LANES * step.weight_bytes
    slabs = (rows + SLAB - 1) // SLAB
    parts = max(step.team, min(linear.blocks * block_bytes // PIECE_BYTES, PARTS_PER_THREAD * step.team))
    parts = min((parts + step.team - 1) // step.team * step.team, linear.blocks)
    piece = claim(step, phase)
    while piece < slabs * parts:
        part, row = piece // slabs, piece % slabs * SLAB
        block, last = linear.blocks * part // parts, linear.blocks * (part + 1) // parts
        end = min(rows, row + SLAB)
        while block < last:
            blocks = blocks_at_once(min(end - row, MAX_ROWS, sums), last - block, sums)
            multiply_strip(step, kind, linear, row, end, sums // blocks, block, blocks, a, out, add)
            block += blocks
        done(step, phase)
        piece = claim(step, phase)
    wait(step, phase, slabs * parts)


@njit
def multiply_strip(
    step: Any, kind: Any, linear: Any, row: int, end: int, most: int, block: int, blocks: int, a: int, out: int,
    add: bool,
) -> None:  # fmt: skip
    """Rows [row, end) times `blocks` blocks of columns, at most `most` rows at once, all tiles about equally high."""
    together = 4 // step.act_bytes  # as many k fill the four bytes that a tile takes at once
    a_row, depth = linear.inputs * step.act_bytes, linear.inputs // together
    b_step = LANES * step.weight_bytes * together
    out_row, at = linear.blocks * BLOCK_ROW, block * BLOCK_ROW
    block_bytes = depth * b_step
    weight = linear.weight + block * block_bytes
    groups = (end - row + min(most, MAX_ROWS) - 1) // min(most, MAX_ROWS)
    while row < end:
        count = (end - row + groups - 1) // groups
        groups -= 1
        tile(
            kind, count, blocks, a + row * a_row, a_row, spaced(weight, block_bytes), b_step, blocks * block_bytes,
            depth, linear.bias + at, linear.start + at, linear.scales + at, step.act_scales + row * 4,
            out + row * out_row + at, out_row, add,
        )  # fmt: skip
        row += count


@njit
def row_pieces(step: Any, rows: int) -> int:
    """Into how many pieces row work is cut: a few for each thread."""
    return min(rows, 4 * step.team)


@njit
def act_row(step: Any, me: int, row: int, width: int) -> int:
    """Where to put a float32 row that becomes an input of a product; call `seal_row` when it is there."""
    return step.spare + me * max(step.hidden, step.inner) * 4 if step.act_bytes < 4 else step.act + row * width * 4


@njit
def seal_row(step: Any, row: int, at: int, width: int) -> None:
    """Make the float32 row at `at` the input row of the next product: rounded, for int8 with a scale of its own."""
    if step.act_bytes == 2:
        round_row(at, step.act + row * width * 2, width // LANES)
    elif step.act_bytes == 1:
        scale = quantize_row(at, step.act + row * width, width // LANES, INT8_OFFSET)
        floats(step.act_scales, row + 1)[row] = scale


@njit
def norm_rows(step: Any, phase: int, me: int, norm: int, rows: int, picked: bool) -> None:
    """RMSNorm number `norm` over rows of x (all, or those that draw) into product inputs."""
    weight = step.norms + norm * step.hidden * 4
    wanted = integers(step.draw_rows, rows)
    pieces = row_pieces(step, rows)
    piece = claim(step, phase)
    while piece < pieces:
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            source = wanted[row] if picked else row
            at = act_row(step, me, row, step.hidden)
            norm_row(step.x + source * step.hidden * 4, weight, at, step.hidden // LANES, step.hidden_size, step.eps)
            seal_row(step, row, at, step.hidden)
        done(step, phase)
        piece = claim(step, phase)
    wait(step, phase, pieces)


@njit
def gate_rows(step: Any, phase: int, me: int) -> None:
    """SiLU(gate) * up into product inputs."""
    pieces = row_pieces(step, step.tokens)
    piece = claim(step, phase)
    while piece < pieces:
        for row in range(step.tokens * piece // pieces, step.tokens * (piece + 1) // pieces):
            gate = step.gate_up + row * step.inner * 8
            at = act_row(step, me, row, step.inner)
            silu_multiply_row(gate, gate + step.inner * 4, at, step.inner // LANES)
            seal_row(step, row, at, step.inner)
        done(step, phase)
        piece = claim(step, phase)
    wait(step, phase, pieces)


@njit
def seal_mixed_rows(step: Any, phase: int) -> None:
    """Attention output into product inputs."""
    pieces = row_pieces(step, step.tokens)
    piece = claim(step, phase)
    while piece < pieces:
        for row in range(step.tokens * piece // pieces, step.tokens * (piece + 1) // pieces):
            seal_row(step, row, step.mixed + row * step.mixed_width * 4, step.mixed_width)
        done(step, phase)
        piece = claim(step, phase)
    wait(step, phase, pieces)
