"""Matrix products of one register tile: some rows of activations times blocks of 16 packed columns.

The same sum in the same order for every tile shape, so a row's result never depends on its neighbours. Weights are
float32, IEEE half, bfloat16 (sums in float32) or int8 (sums exact in int32, whatever the CPU has to build them from).
Must not know models or pages.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decode.executors.simd import (
    BF16,
    F16,
    F32,
    FEATURES,
    I1,
    I8,
    I16,
    I32,
    I64,
    LANES,
    VF32,
    VI32,
    WIDE,
    Builder,
    Value,
    call,
    constant,
    fetch_line,
    fma,
    load,
    loop,
    prefetch_span,
    round_bfloat,
    spread,
    store,
)

# numba types that stand for what weights and pages hold. FLOAT, HALF, BFLOAT: widened to float32 where needed.
# PAIR: weights and activations as bfloat16, two k side by side. BYTE: both as int8, four k side by side, sums in int32.
FLOAT, HALF, BFLOAT, PAIR, BYTE = types.float32, types.int16, types.uint16, types.uint32, types.int8

VNNI = WIDE and "avx512vnni" in FEATURES
SHORT_VNNI = not WIDE and "avxvnni" in FEATURES
AVX2 = "avx2" in FEATURES
BFLOAT_DOT = WIDE and "avx512bf16" in FEATURES
# Activations are stored with this added, because the VNNI product wants one unsigned operand.
INT8_OFFSET = 128 if VNNI or SHORT_VNNI else 0
# A tile has at most MAX_ROWS rows, MAX_BLOCKS blocks and MAX_SUMS sums: 24 of 32 registers, or 12 of 16 half as long.
# The int8 product needs more registers beside them where it is built from several instructions.
MAX_ROWS, MAX_BLOCKS, MAX_SUMS = (12, 4, 24) if WIDE else (6, 2, 6)
MAX_SUMS_INT8 = MAX_SUMS if VNNI or SHORT_VNNI else 4


def _widen(builder: Builder, at: Value, offset: Value, kind: types.Type) -> Value:
    """16 packed numbers as float32."""
    if kind == FLOAT:
        return load(builder, at, offset, VF32)
    raw = load(builder, at, offset, ir.VectorType(F16 if kind == HALF else I16, LANES))
    if kind == HALF:
        return builder.fpext(raw, VF32)
    return builder.bitcast(builder.shl(builder.zext(raw, VI32), constant(VI32, 16)), VF32)


def _dot4(builder: Builder, total: Value, x: Value, w: Value) -> Value:
    """total[j] += sum of x[i] * w[4 j + i] over i < 4; x one int32 holding 4 bytes, w 64 bytes. Exact."""
    if VNNI:
        w = builder.bitcast(w, VI32)
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", VI32, total, spread(builder, x), w)
    if SHORT_VNNI:
        return _dot4_halves(builder, total, x, w)
    if AVX2:
        return _dot4_avx2(builder, total, x, w)
    wide = ir.VectorType(I16, 4 * LANES)
    product = builder.mul(builder.sext(builder.bitcast(spread(builder, x), w.type), wide), builder.sext(w, wide))
    for i in range(4):
        lanes = ir.Constant(VI32, [4 * j + i for j in range(LANES)])
        part = builder.shuffle_vector(product, ir.Constant(wide, ir.Undefined), lanes)
        total = builder.add(total, builder.sext(part, VI32))
    return total


def _dot4_halves(builder: Builder, total: Value, x: Value, w: Value) -> Value:
    """The VNNI product of CPUs whose registers hold 8 lanes."""
    half = ir.VectorType(I32, LANES // 2)
    spread_x, parts = spread(builder, x, LANES // 2), []
    w = builder.bitcast(w, VI32)
    for first in (0, LANES // 2):
        lanes = ir.Constant(half, list(range(first, first + LANES // 2)))
        acc, column = (builder.shuffle_vector(v, ir.Constant(VI32, ir.Undefined), lanes) for v in (total, w))
        parts.append(call(builder, "llvm.x86.avx512.vpdpbusd.256", half, acc, spread_x, column))
    return builder.shuffle_vector(*parts, ir.Constant(VI32, list(range(LANES))))


def _dot2(builder: Builder, total: Value, x: Value, w: Value) -> Value:
    """total[j] += sum of x[i] * w[2 j + i] over i < 2; x one int32 holding two bfloat16, w 16 such pairs."""
    x = spread(builder, x)
    if BFLOAT_DOT:
        pairs = ir.VectorType(BF16, 2 * LANES)
        x, w = builder.bitcast(x, pairs), builder.bitcast(w, pairs)
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VF32, total, x, w)
    for part in (lambda v: builder.shl(v, constant(VI32, 16)), lambda v: builder.and_(v, constant(VI32, -65536))):
        total = fma(builder, builder.bitcast(part(x), VF32), builder.bitcast(part(w), VF32), total)
    return total


def _dot4_avx2(builder: Builder, total: Value, x: Value, w: Value) -> Value:
    """|w| times (x with the sign of w): two products of at most 127 * 127 fit 16 bits, so nothing saturates."""
    bytes_, words, sums = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    activation = builder.bitcast(spread(builder, x, 8), bytes_)
    halves = []
    for first in (0, 32):
        lanes = ir.Constant(ir.VectorType(I32, 32), list(range(first, first + 32)))
        part = builder.shuffle_vector(w, ir.Constant(w.type, ir.Undefined), lanes)
        size = call(builder, "llvm.abs.v32i8", bytes_, part, constant(I1, 0))
        signed = call(builder, "llvm.x86.avx2.psign.b", bytes_, activation, part)
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", words, size, signed)
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", sums, pairs, constant(words, 1)))
    return builder.add(total, builder.shuffle_vector(*halves, ir.Constant(VI32, list(range(LANES)))))


def _sums(
    builder: Builder, kind: types.Type, rows: list[Value], b: list[Value], b_step: Value, ahead: Value | None,
    depth: Value, start: list[Value],
) -> list[Value]:  # fmt: skip
    """Sums, row by row, after `depth` steps of one k (PAIR: two, BYTE: four)."""
    several = {PAIR: (_dot2, VI32), BYTE: (_dot4, ir.VectorType(I8, 4 * LANES))}.get(kind)

    def step(k: Value, totals: list[Value]) -> list[Value]:
        at = builder.mul(k, b_step)
        for block in b if ahead is not None else []:
            fetch_line(builder, block, builder.add(at, ahead))
        if several:
            columns = [load(builder, block, at, several[1]) for block in b]
        else:
            columns = [_widen(builder, block, at, kind) for block in b]
        new: list[Value] = []
        for row in rows:
            x = load(builder, row, builder.mul(k, constant(I64, 4)), I32 if several else F32)
            for column in columns:
                total = totals[len(new)]
                new.append(
                    several[0](builder, total, x, column)
                    if several
                    else fma(builder, spread(builder, x), column, total)
                )
        return new

    return loop(builder, depth, start, step)


def _tile(builder: Builder, kind: types.Type, rows: int, blocks: int, args: list[Value]) -> None:
    a, a_row, b, b_step, ahead, depth, bias, start, column_scales, row_scales, out, out_row, add = args
    lines = [builder.add(a, builder.mul(a_row, constant(I64, r))) for r in range(rows)]
    columns = cgutils.unpack_tuple(builder, b)[:blocks]
    if kind == BYTE:
        first = [load(builder, start, 64 * j, VI32) for j in range(blocks)]
    else:
        first = [constant(VF32, 0.0)] * blocks
    totals = _sums(builder, kind, lines, columns, b_step, ahead, depth, first * rows)
    for r in range(rows):
        line = builder.add(out, builder.mul(out_row, constant(I64, r)))
        for j in range(blocks):
            total = totals[r * blocks + j]
            if kind == BYTE:
                scale = spread(builder, load(builder, row_scales, 4 * r, F32))
                scale = builder.fmul(scale, load(builder, column_scales, 64 * j, VF32))
                total = builder.fmul(builder.sitofp(total, VF32), scale)
            total = builder.fadd(total, load(builder, bias, 64 * j, VF32))
            total = builder.select(add, builder.fadd(total, load(builder, line, 64 * j, VF32)), total)
            store(builder, total, line, 64 * j)


def _mix(builder: Builder, kind: types.Type, rows: int, blocks: int, args: list[Value]) -> None:
    a, a_row, a_page, table, pages, base, page_bytes, b_step, depth, last, fetch, fetches, fetch_bytes, *rest = args
    fetch_base, out, out_row = rest
    width = constant(I64, LANES * _bytes(kind))
    lines = [builder.add(a, builder.mul(a_row, constant(I64, r))) for r in range(rows)]

    def page_at(table: Value, index: Value, base: Value) -> Value:
        number = load(builder, table, builder.shl(index, constant(I64, 3)), I64)
        return builder.add(base, builder.mul(number, page_bytes))

    def page(index: Value, totals: list[Value]) -> list[Value]:
        wanted = builder.icmp_signed("<", index, fetches)
        prefetch_span(
            builder,
            page_at(fetch, builder.select(wanted, index, constant(I64, 0)), fetch_base),
            builder.select(wanted, fetch_bytes, constant(I64, 0)),
        )
        values = page_at(table, index, base)
        columns = [builder.add(values, builder.mul(width, constant(I64, j))) for j in range(blocks)]
        shift = builder.mul(index, a_page)
        steps = builder.select(builder.icmp_signed("==", index, builder.sub(pages, constant(I64, 1))), last, depth)
        return _sums(builder, kind, [builder.add(x, shift) for x in lines], columns, b_step, None, steps, totals)

    totals = loop(builder, pages, [constant(VF32, 0.0)] * (rows * blocks), page)
    for r in range(rows):
        for j in range(blocks):
            store(builder, totals[r * blocks + j], builder.add(out, builder.mul(out_row, constant(I64, r))), 64 * j)


def _bytes(kind: types.Type) -> int:
    return 4 if kind == FLOAT else 2


def _by_shape(builder: Builder, kind: types.Type, rows: Value, blocks: Value, emit: Any, args: list[Value]) -> None:
    """Code for every shape of tile, and a jump to the one at hand."""
    done = builder.append_basic_block("done")
    most = MAX_SUMS_INT8 if kind == BYTE else MAX_SUMS
    choice = builder.switch(builder.add(builder.mul(rows, constant(I64, MAX_BLOCKS)), blocks), done)
    for r in range(1, MAX_ROWS + 1):
        for j in (j for j in (1, 2, 4) if j <= MAX_BLOCKS and r * j <= most):
            block = builder.append_basic_block(f"tile_{r}_{j}")
            choice.add_case(constant(I64, r * MAX_BLOCKS + j), block)
            builder.position_at_end(block)
            emit(builder, kind, r, j, args)
            builder.branch(done)
    builder.position_at_end(done)


@intrinsic
def put(typing: Any, kind: Any, at: Any, value: Any) -> Any:
    """Store a float32 at an address as what `kind` stands for, rounded to nearest even."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        _, at, value = args
        if kind == HALF:
            value = builder.fptrunc(value, F16)
        elif kind == BFLOAT:
            value = round_bfloat(builder, value)
        store(builder, value, at, 0)
        return context.get_dummy_value()

    return types.void(kind, types.int64, types.float32), generate


@intrinsic
def spaced(typing: Any, first: Any, apart: Any) -> Any:
    """MAX_BLOCKS addresses that lie `apart` bytes apart."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        first, apart = args
        every = [builder.add(first, builder.mul(apart, constant(I64, j))) for j in range(MAX_BLOCKS)]
        return cgutils.pack_array(builder, every, I64)

    return types.UniTuple(types.int64, MAX_BLOCKS)(types.int64, types.int64), generate


@intrinsic
def first_of(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The first MAX_BLOCKS of four addresses."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        return cgutils.pack_array(builder, args[:MAX_BLOCKS], I64)

    return types.UniTuple(types.int64, MAX_BLOCKS)(*[types.int64] * 4), generate


@intrinsic
def tile(
    typing: Any, kind: Any, rows: Any, blocks: Any, a: Any, a_row: Any, b: Any, b_step: Any, ahead: Any, depth: Any,
    bias: Any, start: Any, column_scales: Any, row_scales: Any, out: Any, out_row: Any, add: Any,
) -> Any:  # fmt: skip
    """out[r, 16 j:] = sum over k < depth of a[r, k] * b[j][k] + bias (+ out, if `add`), for r < rows, j < blocks.

    All but `kind`, `rows`, `blocks`, `depth` and `add` are addresses, or distances in bytes. `kind` is any value of the
    type that stands for what `b` holds: addresses of MAX_BLOCKS blocks, in each 16 columns per k, `b_step` from k to k.
    What lies `ahead` of each is fetched for later. `blocks` is 1, 2 or 4; see MAX_SUMS.
    PAIR: two k at once. BYTE: four, `a` bytes + INT8_OFFSET, int32 sums begin at `start`, then times the two scales.
    """

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        _by_shape(builder, kind, args[1], args[2], _tile, args[3:])
        return context.get_dummy_value()

    i = types.int64
    return types.void(kind, *[i] * 4, types.UniTuple(i, MAX_BLOCKS), *[i] * 9, types.boolean), generate


@intrinsic
def mix(
    typing: Any, kind: Any, rows: Any, blocks: Any, a: Any, a_row: Any, a_page: Any, table: Any, pages: Any, base: Any,
    page_bytes: Any, b_step: Any, depth: Any, last: Any, fetch: Any, fetches: Any, fetch_bytes: Any,
    fetch_base: Any, out: Any, out_row: Any,
) -> Any:  # fmt: skip
    """out[r, :] = sum over pages and their positions of a[r, position] * value[position], `blocks` blocks wide.

    Page p of `pages` lies at base + table[p] * page_bytes, its positions `b_step` apart, `depth` of them (`last` in
    the last page); a's numbers for it begin p * `a_page` bytes after a. Meanwhile `fetch_bytes` of each of the first
    `fetches` pages of a second table, counted from `fetch_base`, are fetched for later.
    """

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        _by_shape(builder, kind, args[1], args[2], _mix, args[3:])
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 18), generate
