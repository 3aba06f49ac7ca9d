"""What a step costs on a GPU that is not here: measured operators, put together for one model.

A step is layers times (four linear layers, attention, small kernels), the head, the draws. Not in it: what the host
needs between steps, and communication between GPUs. Standard library only; must not know plans, tiers or clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from decode.executors.gpu_table import Axis, GpuError, GpuTable, Grid, gpu_table, known_gpus
from decode.executors.model_config import ModelConfig

__all__ = ["GpuError", "GpuLaw", "GpuMemory", "ModelShape", "StepWork", "gpu_table", "known_gpus", "prefill_ns"]

ELEMENT = 2  # bytes of an activation, and of a key or value
SMALL_KERNELS = 4  # per layer, outside the measured operators: two norms with residual, rotation, gated activation
DRAW_PASSES = 4  # times the logits (fp32) of a draw are read or written: scale, softmax, sort or cut, draw


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

    spread: tuple[float, ...] = ()  # nobody measured whole steps

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
