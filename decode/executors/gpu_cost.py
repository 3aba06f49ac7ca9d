"""What a step costs on a GPU that is not here: measured operators, put together for one model.

Each table under `gpus/` holds latencies of linear layers and of attention (see tools/fit_gpu.py for where they come
from, and each file for how far it was off on measurements that it does not hold). A step is layers times (four linear
layers, attention, small kernels), the head, the draws. Not in it: what the host needs between steps, and
communication between GPUs. Standard library only; must not know plans, tiers or time.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from decode.executors.model_config import ModelConfig

TABLES = Path(__file__).parent / "gpus"
STEPS = 100  # values in the tables are hundredths of an octave above one microsecond
ELEMENT = 2  # bytes of an activation, and of a key or value
SMALL_KERNELS = 4  # per layer, outside the measured operators: two norms with residual, rotation, gated activation
DRAW_PASSES = 4  # times the logits (fp32) of a draw are read or written: scale, softmax, sort or cut, draw


class GpuError(ValueError):
    """A GPU, or a precision on it, that has no table; one line, names what there is."""

    exit_status = 2


class StepWork(NamedTuple):
    """What one step computes. A chunk of t prompt tokens after c others adds t * (c + t / 2) to `prefill_context`."""

    prefill_tokens: int = 0
    prefills: int = 0  # chunks that these tokens come in
    prefill_context: int = 0  # for each chunk: its tokens times the mean number of positions they attend to
    decodes: int = 0
    context_tokens: int = 0  # positions that decoding sequences attend to, all together
    draws: int = 0  # rows of logits


class GpuMemory(NamedTuple):
    """Bytes: of the GPU, of the weights, of K and V per token, and what the runtime keeps for itself."""

    total: int
    weights: int
    kv_per_token: int
    reserved: int

    def tokens(self, utilization: float = 0.9) -> int:
        """Tokens whose K and V fit beside the weights when `utilization` of the memory may be used."""
        return max(0, int(self.total * utilization - self.weights - self.reserved) // self.kv_per_token)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder-only transformer that its cost depends on; a gated MLP, grouped-query attention."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False  # one matrix serves as embedding and head

    @classmethod
    def of(cls, config: ModelConfig) -> ModelShape:
        return cls(
            config.num_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.vocab_size,
            config.tie_embeddings,
        )

    def linears(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of the linear layers of one block: QKV, out, gate and up, down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            (q + 2 * kv, self.hidden),
            (self.hidden, q),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        )


class Axis:
    """Measured sizes along one dimension, and where between them a size lies (in logarithms)."""

    def __init__(self, sizes: Sequence[float]) -> None:
        self.logs = [math.log2(size) for size in sizes]

    def find(self, size: float) -> tuple[int, float, float]:
        """Index below, fraction to the next, octaves beyond the last. Below the first size the first counts."""
        logs, x = self.logs, math.log2(size) if size > 0 else -math.inf
        if x <= logs[0]:
            return 0, 0.0, 0.0
        if x >= logs[-1]:
            return len(logs) - 1, 0.0, x - logs[-1]
        i = bisect_right(logs, x) - 1
        return i, (x - logs[i]) / (logs[i + 1] - logs[i]), 0.0


class Grid:
    """Latency over two sizes, interpolated in logarithms; beyond the last size it grows with the work.

    `values[i][j]`: log2 of µs. `power`: of the second size in the work (context of decoding 1, prompt length 2).
    """

    def __init__(self, rows: Axis, columns: Axis, values: list[list[float]], power: float, scale: float = 1.0) -> None:
        self.rows, self.columns, self.values, self.power, self.scale = rows, columns, values, power, scale

    def ns(self, row: float, column: float) -> float:
        i, f, more = self.rows.find(row * self.scale)
        j, g, longer = self.columns.find(column)
        upper = self.values[i]
        value = upper[j] + (g * (upper[j + 1] - upper[j]) if g else 0.0)
        if f:
            lower = self.values[i + 1]
            value += f * (lower[j] + (g * (lower[j + 1] - lower[j]) if g else 0.0) - value)
        return float(1000.0 * 2.0 ** (value + more + self.power * longer))


Kind = Literal["prefill", "decode"]


class GpuTable:
    """One file of `gpus/`, and the questions it answers."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.name: str = raw["gpu"]

    def precision(self, name: str) -> str:
        """The table of linear layers that serves weights of this precision. Raises GpuError."""
        known: dict[str, str] = self.raw["precisions"]
        if name not in known:
            raise GpuError(f"precision {name!r} has no measurements on {self.name}; choose one of {', '.join(known)}")
        return known[name]

    def tokens(self, precision: str) -> list[int]:
        """Numbers of tokens at which linear layers were measured."""
        sizes: list[int] = self.raw["linear"][precision]["m"]
        return sizes

    def linear(self, precision: str, n: int, k: int) -> list[float]:
        """log2 of µs of [m, k] x [k, n], for each m of `tokens`."""
        table = self.raw["linear"][precision]
        i, f, wider = Axis(table["n"]).find(n)
        j, g, deeper = Axis(table["k"]).find(k)
        total = [wider + deeper] * len(table["m"])
        for row, weight in ((i, 1 - f), (i + 1, f)):
            for column, share in ((j, 1 - g), (j + 1, g)):
                if weight * share:
                    cell = table["values"][row][column]
                    total = [t + weight * share * v / STEPS for t, v in zip(total, cell, strict=True)]
        return total

    def linear_grid(self, precision: str, n: int, k: int) -> Grid:
        """Latency of one linear layer over its tokens; the second size is 1."""
        return Grid(Axis(self.tokens(precision)), Axis([1]), [[v] for v in self.linear(precision, n, k)], 0.0)

    def attention(self, kind: Kind, heads: int, kv_heads: int, head_dim: int) -> Grid:
        """Latency over (sequences, context) for decode, over (prompts, tokens of each) for prefill.

        Heads that were not measured lie between those that were, with as many query heads to a KV head; sequences and
        KV heads are alike to the kernels, so more KV heads than measured count as more sequences.
        """
        dim = min(self.raw[kind], key=lambda d: abs(math.log2(head_dim / int(d))))
        table, scale = self.raw[kind][dim], head_dim / int(dim)
        pairs = {tuple(pair): cells for pair, cells in zip(table["pairs"], table["values"], strict=True)}
        group, most = heads / kv_heads, max(kv for h, kv in pairs if h > kv)
        ends = [(kv_heads, 1.0)]
        if (heads, kv_heads) not in pairs:
            if kv_heads > most:
                kv_heads, scale = most, scale * kv_heads / most
            known = sorted({kv for _, kv in pairs if kv <= most})
            i, f, _ = Axis(known).find(kv_heads)
            ends = [(known[i], 1 - f), (known[min(i + 1, len(known) - 1)], f)]
        total = [[0.0] * len(table["columns"]) for _ in table["rows"]]
        for kv, weight in ends:
            sizes = sorted(h for h, other in pairs if other == kv)
            j, g, beyond = Axis(sizes).find(group * kv)
            more = beyond if kind == "prefill" else 0.0  # each query head costs; K and V are read once for a group
            for at, share in ((j, weight * (1 - g)), (j + 1, weight * g)):
                if share:
                    add(total, share, pairs[sizes[at], kv], more)
        return Grid(Axis(table["rows"]), Axis(table["columns"]), total, 2.0 if kind == "prefill" else 1.0, scale)


def add(total: list[list[float]], share: float, cells: list[list[int]], more: float) -> None:
    """Add a share of a table's cells, each `more` octaves up, to `total`."""
    for row, line in zip(total, cells, strict=True):
        for j, cell in enumerate(line):
            row[j] += share * (cell / STEPS + more)


def prefill_ns(prefill: Grid, decode: Grid, chunks: int, tokens: int, context: float) -> float:
    """Attention of `chunks` chunks in one layer.

    Measured were whole prompts. A chunk behind a context costs as much as a whole prompt with as many products of
    query and key: L with L * L / 2 = tokens * positions; and no less than reading its keys and values once, as a
    decode does.
    """
    length = math.sqrt(2.0 * context / chunks)
    return max(prefill.ns(chunks, length), decode.ns(chunks, context / tokens))


class GpuLaw:
    """Predicts ns per step of one model on one GPU. Grows with tokens, sequences and context."""

    def __init__(self, table: GpuTable, model: ModelShape, precision: str = "fp16") -> None:
        """Raises GpuError for a precision without measurements. The head is never quantized."""
        self.table, self.model, self.precision = table, model, precision
        dense, plain = table.precision(precision), table.precision("fp16")
        self._bandwidth: float = table.raw["bandwidth"] * table.raw["bandwidth_fraction"] / 1e9  # bytes per ns
        self._kernel = float(table.raw["kernel_ns"])
        curves = [table.linear(dense, n, k) for n, k in model.linears()]
        layer = [[math.log2(sum(2.0**v for v in at))] for at in zip(*curves, strict=True)]
        self._linear = Grid(Axis(table.tokens(dense)), Axis([1]), layer, 0.0)
        self._head = table.linear_grid(plain, model.vocab, model.hidden)
        heads = (model.heads, model.kv_heads, model.head_dim)
        self._prefill, self._decode = table.attention("prefill", *heads), table.attention("decode", *heads)
        self._blocks: dict[int, float] = {}
        self._heads: dict[int, float] = {}

    def step(self, work: StepWork) -> float:
        """ns of a step; 0 for no work."""
        tokens = work.prefill_tokens + work.decodes
        if not tokens:
            return 0.0
        total = self._blocks.get(tokens) or self._block(tokens)
        attention = 0.0
        if work.prefill_tokens:
            attention = prefill_ns(
                self._prefill, self._decode, max(1, work.prefills), work.prefill_tokens, work.prefill_context
            )
        if work.decodes:
            attention += self._decode.ns(work.decodes, work.context_tokens / work.decodes)
        total += self.model.layers * attention
        if work.draws:
            total += self._heads.get(work.draws) or self._draw(work.draws)
        return total

    def _block(self, tokens: int) -> float:
        """All that grows with the tokens alone: linear layers and small kernels of all layers, and the embedding."""
        m = self.model
        q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
        moved = tokens * ELEMENT * (6 * m.hidden + 2 * (q + kv) + 3 * m.intermediate)
        small = SMALL_KERNELS * self._kernel + moved / self._bandwidth
        edges = 2 * self._kernel + 4 * tokens * ELEMENT * m.hidden / self._bandwidth
        total = m.layers * (self._linear.ns(tokens, 1) + small) + edges
        self._blocks[tokens] = total
        return total

    def _draw(self, draws: int) -> float:
        sampled = DRAW_PASSES * (self._kernel + draws * self.model.vocab * 4 / self._bandwidth)
        self._heads[draws] = total = self._head.ns(draws, 1) + sampled
        return total

    def memory(self) -> GpuMemory:
        m, raw = self.model, self.table.raw
        size = 1 if self.precision in ("int8", "fp8") else ELEMENT
        blocks = m.layers * (sum(n * k for n, k in m.linears()) * size + 2 * m.hidden * ELEMENT)
        weights = blocks + (m.vocab * m.hidden * (1 if m.tied else 2) + m.hidden) * ELEMENT
        kv = 2 * m.layers * m.kv_heads * m.head_dim * ELEMENT
        return GpuMemory(raw["memory_bytes"], weights, kv, raw["reserved_bytes"])


def known_gpus() -> list[str]:
    """Names of all tables, sorted."""
    return sorted(path.stem for path in TABLES.glob("*.json"))


@cache
def gpu_table(name: str) -> GpuTable:
    """The table of a GPU by its name or one of its other names ("a100-80gb"). Raises GpuError."""
    wanted = name.lower().replace("-", "_")
    path = TABLES / f"{wanted}.json"
    if wanted in known_gpus():
        return GpuTable(json.loads(path.read_text(encoding="utf-8")))
    for known in known_gpus():
        raw = json.loads((TABLES / f"{known}.json").read_text(encoding="utf-8"))
        if wanted in raw["aliases"]:
            return GpuTable(raw)
    raise GpuError(f"GPU {name!r} is not known; known are {', '.join(known_gpus())}")
