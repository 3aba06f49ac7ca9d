"""Flattens a step plan into index arrays: all tokens of all chunks in one row order.

Integers only (numpy); shared by the CPU and the CUDA path. Must not know weights, logits or policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decode.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Batch:
    """Index arrays of one step. N tokens, C chunks, P the widest page table of the step.

    Chunk c owns rows [first_row[c], first_row[c + 1]) and sees keys [0, keys[c]).
    """

    tokens: NDArray[np.int64]  # [N]
    positions: NDArray[np.int64]  # [N] position in its own sequence
    slots: NDArray[np.int64]  # [N] page * page_size + offset, where its KV goes
    first_row: NDArray[np.int64]  # [C + 1]
    keys: NDArray[np.int64]  # [C] start + tokens of the chunk
    pages: NDArray[np.int64]  # [C, P], padded with 0
    draw_rows: NDArray[np.int64]  # rows whose logits are wanted, in chunk order


def flatten(plan: StepPlan, page_size: int) -> Batch:
    """Lay the chunks of `plan` out one after the other. Raises ValueError when a chunk has too few pages."""
    chunks = plan.chunks
    first_row = np.zeros(len(chunks) + 1, np.int64)
    np.cumsum([len(c.tokens) for c in chunks], out=first_row[1:])
    starts = np.array([c.start for c in chunks], np.int64)
    lengths = np.diff(first_row)
    keys = starts + lengths
    needed = -(-keys // page_size)
    pages = np.zeros((len(chunks), int(needed.max(initial=1))), np.int64)
    for row, chunk, count in zip(pages, chunks, needed.tolist(), strict=True):
        if len(chunk.pages) < count:
            raise ValueError(f"sequence {chunk.seq}: {len(chunk.pages)} pages, {count} are needed")
        row[:count] = chunk.pages[:count]
    tokens = np.fromiter((t for c in chunks for t in c.tokens), np.int64, int(first_row[-1]))
    positions = np.arange(first_row[-1]) + np.repeat(starts - first_row[:-1], lengths)
    owner = np.repeat(np.arange(len(chunks)), lengths)
    slots = pages[owner, positions // page_size] * page_size + positions % page_size
    draws = np.array([c.draw is not None for c in chunks], bool)
    return Batch(tokens, positions, slots, first_row, keys, pages, first_row[1:][draws] - 1)
