"""Building blocks of LLVM code for the CPU at hand: 16-lane vectors, loops, exp, and what threads need.

A vector is 16 lanes wide whatever the CPU; LLVM splits it where registers are shorter. Addresses are integers.
Must not know models, pages or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
VF32, VI32 = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


class _Bfloat(ir.Type):
    """bfloat16, which LLVM knows and llvmlite does not; there are no constants of it."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


BF16 = _Bfloat()
Builder: TypeAlias = ir.IRBuilder
Value = Any  # a value in LLVM code under construction


def _features() -> set[str]:
    """Features of the CPU that numba compiles for: the host, unless NUMBA_CPU_FEATURES says otherwise."""
    asked: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    if asked is not None:
        return {f[1:] for f in asked.split(",") if f.startswith("+")}
    return {name for name, present in llvm.get_host_cpu_features().items() if present}


FEATURES = _features()
WIDE = "avx512f" in FEATURES  # 32 registers of 16 lanes, else taken as 16 registers of 8


def constant(kind: ir.Type, value: float) -> Value:
    """A constant of a scalar type, or of a vector type with equal lanes."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def load(builder: Builder, address: Value, offset: Value | int, kind: ir.Type) -> Value:
    """What lies `offset` bytes after `address`; no alignment is assumed."""
    offset = constant(I64, offset) if isinstance(offset, int) else offset
    return builder.load(builder.inttoptr(builder.add(address, offset), kind.as_pointer()), align=1)


def store(builder: Builder, value: Value, address: Value, offset: Value | int) -> None:
    """Put `value` at `offset` bytes after `address`."""
    offset = constant(I64, offset) if isinstance(offset, int) else offset
    builder.store(value, builder.inttoptr(builder.add(address, offset), value.type.as_pointer()), align=1)


def fetch_line(builder: Builder, address: Value, offset: Value) -> None:
    """Have the cache line at `offset` bytes after `address` brought near; harmless where there is no memory."""
    line = builder.inttoptr(builder.add(address, offset), I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [line.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [line, constant(I32, 0), constant(I32, 3), constant(I32, 1)])


def prefetch_span(builder: Builder, address: Value, nbytes: Value) -> None:
    """Have the cache lines of `nbytes` bytes brought near."""

    def body(i: Value, state: list[Value]) -> list[Value]:
        fetch_line(builder, address, builder.mul(i, constant(I64, 64)))
        return state

    loop(builder, builder.lshr(nbytes, constant(I64, 6)), [], body)


def spread(builder: Builder, scalar: Value, lanes: int = LANES) -> Value:
    """A vector with `scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    one = builder.insert_element(undefined, scalar, constant(I32, 0))
    return builder.shuffle_vector(one, undefined, constant(ir.VectorType(I32, lanes), 0))


def call(builder: Builder, name: str, result: ir.Type, *args: Value, fastmath: tuple[str, ...] = ()) -> Value:
    """Call an LLVM intrinsic or a C function by name."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args, fastmath=fastmath)


def fma(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once."""
    return call(builder, "llvm.fma.v16f32", VF32, a, b, c)


def loop(
    builder: Builder, count: Value, start: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """Emit `for i in range(count): state = body(i, state)`; returns the state after it."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index, state = builder.phi(I64), [builder.phi(v.type) for v in start]
    builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
    builder.position_at_end(inside)
    new = [builder.add(index, constant(I64, 1)), *body(index, list(state))]
    end = builder.block
    builder.branch(head)
    for phi, first, following in zip([index, *state], [constant(I64, 0), *start], new, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(following, end)
    builder.position_at_end(after)
    return list(state)


def exp(builder: Builder, x: Value) -> Value:
    """exp of 16 lanes, relative error under 3e-7; 0 below -87.

    exp(x) = 2**n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) by its series to r**6, 2**n by exponent bits.
    """
    x = call(builder, "llvm.maxnum.v16f32", VF32, x, constant(VF32, -87.5))
    x = call(builder, "llvm.minnum.v16f32", VF32, x, constant(VF32, 88.0))
    n = call(builder, "llvm.rint.v16f32", VF32, builder.fmul(x, constant(VF32, 1.4426950408889634)))
    r = fma(builder, n, constant(VF32, -0.693145751953125), x)  # ln 2 in two parts: the first has few bits
    r = fma(builder, n, constant(VF32, -1.42860682030941723212e-6), r)
    total = constant(VF32, 1 / 720)
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        total = fma(builder, total, r, constant(VF32, coefficient))
    bits = builder.shl(builder.add(builder.fptosi(n, VI32), constant(VI32, 127)), constant(VI32, 23))
    scaled = builder.fmul(total, builder.bitcast(bits, VF32))
    tiny = builder.fcmp_ordered("<=", x, constant(VF32, -87.0))
    return builder.select(tiny, constant(VF32, 0.0), scaled)


@intrinsic
def softmax_row(typing: Any, row: Any, blocks: Any) -> Any:
    """In place exp(x - max) of 16 * `blocks` float32 at address `row`; returns their sum. -inf becomes 0."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        row, blocks = args

        def peak(i: Value, state: list[Value]) -> list[Value]:
            x = load(builder, row, builder.mul(i, constant(I64, 64)), VF32)
            return [call(builder, "llvm.maxnum.v16f32", VF32, state[0], x)]

        def power(i: Value, state: list[Value]) -> list[Value]:
            at = builder.mul(i, constant(I64, 64))
            e = exp(builder, builder.fsub(load(builder, row, at, VF32), top))
            store(builder, e, row, at)
            return [builder.fadd(state[0], e)]

        [best] = loop(builder, blocks, [constant(VF32, -3.0e38)], peak)
        top = spread(builder, call(builder, "llvm.vector.reduce.fmax.v16f32", F32, best))
        [total] = loop(builder, blocks, [constant(VF32, 0.0)], power)
        return _sum(builder, total)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def silu_multiply_row(typing: Any, gate: Any, up: Any, out: Any, blocks: Any) -> Any:
    """out = gate / (1 + exp(-gate)) * up over 16 * `blocks` float32; all three are addresses."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        gate, up, out, blocks = args

        def body(i: Value, state: list[Value]) -> list[Value]:
            at = builder.mul(i, constant(I64, 64))
            g = load(builder, gate, at, VF32)
            bottom = builder.fadd(exp(builder, builder.fneg(g)), constant(VF32, 1.0))
            store(builder, builder.fmul(builder.fdiv(g, bottom), load(builder, up, at, VF32)), out, at)
            return state

        loop(builder, blocks, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def norm_row(typing: Any, row: Any, weight: Any, out: Any, blocks: Any, count: Any, eps: Any) -> Any:
    """out = row / sqrt(mean(row ** 2) + eps) * weight over 16 * `blocks` float32, of which `count` are real."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        row, weight, out, blocks, count, eps = args

        def square(i: Value, state: list[Value]) -> list[Value]:
            x = load(builder, row, builder.mul(i, constant(I64, 64)), VF32)
            return [fma(builder, x, x, state[0])]

        def scale(i: Value, state: list[Value]) -> list[Value]:
            at = builder.mul(i, constant(I64, 64))
            x = builder.fmul(load(builder, row, at, VF32), factor)
            store(builder, builder.fmul(x, load(builder, weight, at, VF32)), out, at)
            return state

        [total] = loop(builder, blocks, [constant(VF32, 0.0)], square)
        mean = builder.fdiv(_sum(builder, total), builder.sitofp(count, F32))
        root = call(builder, "llvm.sqrt.f32", F32, builder.fadd(mean, eps))
        factor = spread(builder, builder.fdiv(constant(F32, 1.0), root))
        loop(builder, blocks, [], scale)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, i, i, i, i, types.float32), generate


def round_bfloat(builder: Builder, value: Value) -> Value:
    """float32 (one, or 16 lanes) to the bits of the nearest bfloat16, ties to even."""
    whole, half = (VI32, ir.VectorType(I16, LANES)) if value.type == VF32 else (I32, I16)
    bits = builder.bitcast(value, whole)
    odd = builder.and_(builder.lshr(bits, constant(whole, 16)), constant(whole, 1))
    bits = builder.add(bits, builder.add(odd, constant(whole, 0x7FFF)))
    return builder.trunc(builder.lshr(bits, constant(whole, 16)), half)


@intrinsic
def round_row(typing: Any, row: Any, out: Any, blocks: Any) -> Any:
    """16 * `blocks` float32 to bfloat16."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        row, out, blocks = args

        def body(i: Value, state: list[Value]) -> list[Value]:
            x = load(builder, row, builder.mul(i, constant(I64, 64)), VF32)
            store(builder, round_bfloat(builder, x), out, builder.mul(i, constant(I64, 32)))
            return state

        loop(builder, blocks, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def quantize_row(typing: Any, row: Any, out: Any, blocks: Any, offset: Any) -> Any:
    """16 * `blocks` float32 to bytes in [-127, 127] + `offset`; returns the scale: row = scale * (byte - offset)."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        row, out, blocks, offset = args

        def largest(i: Value, state: list[Value]) -> list[Value]:
            # As integers, sizes of floats compare alike, and a NaN is the largest of all: it shall not be lost here.
            bits = load(builder, row, builder.mul(i, constant(I64, 64)), VI32)
            size = builder.and_(bits, constant(VI32, 0x7FFFFFFF))
            return [call(builder, "llvm.smax.v16i32", VI32, state[0], size)]

        def body(i: Value, state: list[Value]) -> list[Value]:
            x = load(builder, row, builder.mul(i, constant(I64, 64)), VF32)
            # 1.5 * 2**23 leaves no room for a fraction: the low byte of the sum is the rounded number.
            bits = builder.bitcast(fma(builder, x, factor, constant(VF32, 12582912.0)), VI32)
            shifted = builder.trunc(builder.add(bits, zero), ir.VectorType(I8, LANES))
            store(builder, shifted, out, builder.mul(i, constant(I64, LANES)))
            return state

        [top] = loop(builder, blocks, [constant(VI32, 0x0DA24260)], largest)  # at least 1e-30
        size = builder.bitcast(call(builder, "llvm.vector.reduce.smax.v16i32", I32, top), F32)
        scale = builder.fdiv(size, constant(F32, 127.0))
        factor = spread(builder, builder.fdiv(constant(F32, 1.0), scale))
        zero = spread(builder, builder.trunc(offset, I32))
        loop(builder, blocks, [], body)
        return scale

    return types.float32(*[types.int64] * 4), generate


def _sum(builder: Builder, vector: Value) -> Value:
    start = constant(F32, 0.0)
    return call(builder, "llvm.vector.reduce.fadd.v16f32", F32, start, vector, fastmath=("reassoc",))


@intrinsic
def prefetch(typing: Any, at: Any, nbytes: Any) -> Any:
    """Have `nbytes` at an address brought near; they will be read soon."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        prefetch_span(builder, *args)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer that `numba.carray` takes."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], I8.as_pointer())

    return types.voidptr(types.int64), generate


@intrinsic
def address(typing: Any, pointer: Any) -> Any:
    """The address that a pointer holds."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], I64)

    return types.int64(types.voidptr), generate


@intrinsic
def fetch_add(typing: Any, at: Any, amount: Any) -> Any:
    """Add to the int64 at address `at`, at once for all threads; returns what was there."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], I64.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def read_shared(typing: Any, at: Any) -> Any:
    """The int64 at address `at`, which another thread may change."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def relax(typing: Any) -> Any:
    """Tell the CPU that this thread is waiting in a loop."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        if "sse2" in FEATURES:
            call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def sched_yield(typing: Any) -> Any:
    """Let another thread have this core; the C function of that name."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        return call(builder, "sched_yield", I32)

    return types.int32(), generate


@intrinsic
def cycles(typing: Any) -> Any:
    """A counter that ticks at a steady rate."""

    def generate(context: Any, builder: Builder, signature: Any, args: Any) -> Any:
        return call(builder, "llvm.readcyclecounter", I64)

    return types.int64(), generate
