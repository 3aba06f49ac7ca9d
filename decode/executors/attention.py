"""Rotary embedding, KV pages and attention over them in place, compiled by numba.

A page of one layer and KV head holds keys [page_blocks, head_dim, 16 positions], so that 16 scores are one vector, and
then values [page_size, head_pad]. Decoding and prefill are the same code: a tile is some tokens of one chunk with the
query heads that share a KV head. Must not know plans, files or torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decode.executors.kernels import BLOCK_ROW, blocks_at_once, claim, done, floats, integers, row_pieces, wait
from decode.executors.simd import LANES, prefetch, softmax_row
from decode.executors.tiles import MAX_ROWS, MAX_SUMS, first_of, mix, put, tile

FIRST_PAGES = 8  # pages that are fetched before anything else is there to do
EARLY_BYTES = 1 << 19  # values are asked for along with keys, if both stay in a core's own cache until they are mixed


@njit
def page_at(step: Any, layer: int, page: int, head: int) -> int:
    """Address of what a page holds for one layer and KV head."""
    return step.kv + ((layer * step.num_pages + page) * step.kv_heads + head) * step.head_page_bytes


@njit
def rotate(step: Any, at: int, position: int) -> None:
    """Rotary embedding of one head in place, half-split pairs."""
    half = step.head_dim // 2
    x = floats(at, 2 * half)
    cos = floats(step.rotations + position * half * 8, half)
    sin = floats(step.rotations + (2 * position + 1) * half * 4, half)
    for i in range(half):
        first, second = x[i], x[half + i]
        x[i] = first * cos[i] - second * sin[i]
        x[half + i] = second * cos[i] + first * sin[i]


@njit
def place_rows(step: Any, phase: int, kind: Any, layer: int, qkv_row: int) -> None:
    """Rotate q and k of all tokens; q goes, scaled, to [kv_heads, tokens, group, head_dim], k and v to their pages."""
    pieces = row_pieces(step, step.tokens)
    piece = claim(step, phase)
    while piece < pieces:
        for row in range(step.tokens * piece // pieces, step.tokens * (piece + 1) // pieces):
            place_row(step, kind, layer, row, step.qkv + row * qkv_row)
        done(step, phase)
        piece = claim(step, phase)
    wait(step, phase, pieces)


@njit
def place_row(step: Any, kind: Any, layer: int, row: int, line: int) -> None:
    """One token's share of `place_rows`; its q, k and v are at address `line`."""
    dim, group = step.head_dim, step.heads // step.kv_heads
    slot, position = integers(step.slots, row + 1)[row], integers(step.positions, row + 1)[row]
    for head in range(step.heads + step.kv_heads):
        at = line + head * dim * 4
        if step.qk_norm:
            norm_head(step, at, step.qk_norms + (2 * layer + (head >= step.heads)) * step.head_pad * 4)
        rotate(step, at, position)
    for head in range(step.heads):
        source = floats(line + head * dim * 4, dim)
        target = floats(step.q + ((head // group * step.tokens + row) * group + head % group) * dim * 4, dim)
        for i in range(dim):
            target[i] = source[i] * step.score_scale
    for head in range(step.kv_heads):
        key, value = line + (step.heads + head) * dim * 4, line + (step.heads + step.kv_heads + head) * dim * 4
        page = page_at(step, layer, slot // step.page_size, head)
        place_key_value(step, kind, page, slot % step.page_size, floats(key, dim), floats(value, dim))


@njit
def norm_head(step: Any, at: int, weight: int) -> None:
    """RMSNorm of one head in place."""
    x, w = floats(at, step.head_dim), floats(weight, step.head_dim)
    total = np.float32(0)
    for i in range(step.head_dim):
        total += x[i] * x[i]
    factor = np.float32(1) / np.sqrt(total / np.float32(step.head_dim) + step.eps)
    for i in range(step.head_dim):
        x[i] = x[i] * factor * w[i]


@njit
def place_key_value(step: Any, kind: Any, page: int, offset: int, key: Any, value: Any) -> None:
    """Write one token's key and value at `offset` of the page at address `page`."""
    dim, size = step.head_dim, step.kv_bytes
    keys = page + (offset // LANES * dim * LANES + offset % LANES) * size
    for i in range(dim):
        put(kind, keys + i * LANES * size, key[i])
    values = page + step.value_at + offset * step.head_pad * size
    for i in range(dim):
        put(kind, values + i * size, value[i])


@njit
def attend(step: Any, phase: int, me: int, kind: Any, layer: int) -> None:
    """Causal attention of all tiles into `mixed` [tokens, heads * head_dim]; threads take tiles and KV heads."""
    pieces = step.tiles * step.kv_heads
    piece = claim(step, phase)
    if piece < pieces:
        fetch_first_pages(step, layer, piece)
    while piece < pieces:
        following = claim(step, phase)  # known early, so that its pages can be on their way
        attend_tile(step, me, kind, layer, piece, following if following < pieces else piece)
        done(step, phase)
        piece = following
    wait(step, phase, pieces)


@njit
def tile_pages(step: Any, piece: int) -> Any:
    """Address of the page table that a piece reads, its keys and its pages."""
    index = piece // step.kv_heads
    chunk, start = integers(step.tile_chunk, index + 1)[index], integers(step.tile_start, index + 1)[index]
    first, after = integers(step.first_row + chunk * 8, 2)
    tokens = min(step.tile_tokens, after - first - start)
    keys = integers(step.keys + chunk * 8, 1)[0] - (after - first) + start + tokens
    return step.pages + chunk * step.pages_row, keys, (keys + step.page_size - 1) // step.page_size


@njit
def fetch_first_pages(step: Any, layer: int, piece: int) -> None:
    """Have the keys of a piece brought near before anything else is there to do."""
    table, _, used = tile_pages(step, piece)
    for page in integers(table, min(used, FIRST_PAGES)):
        prefetch(page_at(step, layer, page, piece % step.kv_heads), step.value_at)


@njit
def attend_tile(step: Any, me: int, kind: Any, layer: int, piece: int, following: int) -> None:
    """Some tokens of a chunk, one KV head: scores, softmax, mix."""
    index, head = piece // step.kv_heads, piece % step.kv_heads
    chunk, start = integers(step.tile_chunk, step.tiles)[index], integers(step.tile_start, step.tiles)[index]
    first, after = integers(step.first_row + chunk * 8, 2)
    group = step.heads // step.kv_heads
    tokens = min(step.tile_tokens, after - first - start)
    table, keys, used = tile_pages(step, piece)
    scores = step.scores + me * step.tile_rows * step.score_row
    outs = step.outs + me * step.tile_rows * step.head_pad * 4
    q = step.q + (head * step.tokens + first + start) * group * step.head_dim * 4
    score_tile(step, kind, layer, head, integers(table, used), q, tokens * group, keys, scores)
    for row in range(tokens * group):
        soften_row(step, scores + row * step.score_row, keys - tokens + row // group + 1, keys)
    mix_tile(step, kind, layer, head, table, keys, scores, tokens * group, following, outs)
    for row in range(tokens * group):
        total = floats(scores + row * step.score_row, step.score_row // 4)[step.score_row // 4 - 1]
        source = floats(outs + row * step.head_pad * 4, step.head_dim)
        at = step.mixed + (first + start + row // group) * step.mixed_width * 4
        target = floats(at + (head * group + row % group) * step.head_dim * 4, step.head_dim)
        for i in range(step.head_dim):
            target[i] = source[i] / total


@njit
def column_of(step: Any, key: int) -> int:
    """Column of a score row that belongs to a key: pages are padded to whole blocks."""
    return key // step.page_size * step.page_blocks * LANES + key % step.page_size


@njit
def key_block(step: Any, layer: int, head: int, pages: Any, block: int) -> int:
    """Address of a block of 16 keys."""
    at = page_at(step, layer, pages[block // step.page_blocks], head)
    return at + block % step.page_blocks * step.head_dim * LANES * step.kv_bytes


@njit
def score_tile(
    step: Any, kind: Any, layer: int, head: int, pages: Any, q: int, rows: int, keys: int, scores: int
) -> None:
    """scores [rows, columns] = q [rows, head_dim] times keys; the values of the pages are fetched meanwhile."""
    blocks, block, q_row = column_of(step, keys - 1) // LANES + 1, 0, step.head_dim * 4
    high = min(rows, MAX_ROWS)
    for_values = step.head_page_bytes - step.value_at if len(pages) * step.head_page_bytes <= EARLY_BYTES else 0
    while block < blocks:
        count = blocks_at_once(high, blocks - block, MAX_SUMS)
        for page in range(block // step.page_blocks, (block + count) // step.page_blocks):
            prefetch(page_at(step, layer, pages[page], head) + step.value_at, for_values)
        at = first_of(
            key_block(step, layer, head, pages, block),
            key_block(step, layer, head, pages, min(block + 1, blocks - 1)),
            key_block(step, layer, head, pages, min(block + 2, blocks - 1)),
            key_block(step, layer, head, pages, min(block + 3, blocks - 1)),
        )
        for row in range(0, rows, high):
            tile(
                kind, min(high, rows - row), count, q + row * q_row, q_row, at, LANES * step.kv_bytes, 0, step.head_dim,
                step.zeros, step.zeros, step.zeros, step.zeros,
                scores + row * step.score_row + block * BLOCK_ROW, step.score_row, False,
            )  # fmt: skip
        block += count


@njit
def soften_row(step: Any, at: int, keys: int, tile_keys: int) -> None:
    """Softmax numerators of one row that sees `keys` keys, 0 elsewhere; their sum goes to the row's last place."""
    row = floats(at, step.score_row // 4)
    used = (column_of(step, tile_keys - 1) // LANES + 1) * LANES
    row[column_of(step, keys - 1) + 1 : used] = -np.inf
    if step.page_size % LANES:
        width = step.page_blocks * LANES
        for page in range(keys // step.page_size):
            row[page * width + step.page_size : (page + 1) * width] = -np.inf
    row[-1] = softmax_row(at, used // LANES)


@njit
def mix_tile(
    step: Any,
    kind: Any,
    layer: int,
    head: int,
    table: int,
    keys: int,
    scores: int,
    rows: int,
    following: int,
    outs: int,
) -> None:
    """outs [rows, head_pad] = softmax numerators times values; the following piece is fetched meanwhile."""
    value_row, page_bytes = step.head_pad * step.kv_bytes, step.kv_heads * step.head_page_bytes
    used = (keys + step.page_size - 1) // step.page_size
    fetch, _, fetches = tile_pages(step, following)
    row = 0
    while row < rows:
        high = min(rows - row, MAX_ROWS, MAX_SUMS // blocks_at_once(1, step.head_pad // LANES, MAX_SUMS))
        block = 0
        while block < step.head_pad // LANES:
            count = blocks_at_once(high, step.head_pad // LANES - block, MAX_SUMS)
            mix(
                kind, high, count, scores + row * step.score_row, step.score_row, step.page_blocks * BLOCK_ROW,
                table, used, page_at(step, layer, 0, head) + step.value_at + block * LANES * step.kv_bytes, page_bytes,
                value_row, step.page_size, keys - (used - 1) * step.page_size,
                fetch, fetches if row + block == 0 else 0, step.value_at,
                page_at(step, layer, 0, following % step.kv_heads),
                outs + (row * step.head_pad + block * LANES) * 4, step.head_pad * 4,
            )  # fmt: skip
            block += count
        row += high
