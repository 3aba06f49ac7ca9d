"""The CPU path: owns packed weights, KV pages and scratch, and runs a whole step in one call on all threads.

Threads are those of the OpenMP pool that torch uses, so that no two pools fight for the cores. Must not know plans.
"""

from __future__ import annotations

import ctypes
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decode.executors.batch import Batch
from decode.executors.cpu_step import compiled
from decode.executors.host_pages import HostPages
from decode.executors.kernels import LINEAR, PARTS, PHASE_BYTES, PHASES_PER_LAYER, STEP
from decode.executors.model_config import ModelConfig
from decode.executors.packing import Arena, huge, pack, pack_gate_up, packed_bytes, padded
from decode.executors.simd import LANES
from decode.executors.smoothing import Smoothing
from decode.executors.weights import Linear, Weights, inverse_frequencies
from decode.plan import Copy, Swap

# dtypes of weights and of KV pages
DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "int8": (torch.int8, torch.float16),
}
TILE_ROWS = 24  # query rows that share one look at keys and values


class CpuModel:
    """A model on the CPU with `num_pages` KV pages of `page_size` tokens."""

    def __init__(
        self, config: ModelConfig, weights: Weights, kind: str, num_pages: int, page_size: int, threads: int,
        host_pages: int = 0,
    ) -> None:  # fmt: skip
        self.config, self._kind = config, kind
        self._weight_dtype, self._kv_dtype = DTYPES[kind]
        self._step = np.zeros(1, STEP)
        self._kept: dict[str, NDArray[Any]] = {}  # arrays whose addresses are in the step
        self._scratch: dict[str, NDArray[Any]] = {}
        self._embed = weights.embed
        self._parallel = _parallel_call()
        self._set(team=threads if self._parallel else 1, eps=config.norm_eps, score_scale=config.head_dim**-0.5)
        self._set_sizes()
        self._lay_out_pages(num_pages, page_size, host_pages)
        self._pack(weights)
        self._entry = compiled(kind)

    # --- set-up ---

    def _set(self, **fields: float) -> None:
        for name, value in fields.items():
            self._step[name] = value

    def _keep(self, name: str, array: NDArray[Any]) -> None:
        self._kept[name] = array
        self._step[name] = array.ctypes.data

    def _set_sizes(self) -> None:
        config = self.config
        self._set(
            layers=config.num_layers, heads=config.num_heads, kv_heads=config.num_kv_heads, head_dim=config.head_dim,
            hidden_size=config.hidden_size, hidden=padded(config.hidden_size), inner=padded(config.intermediate_size),
            mixed_width=padded(config.num_heads * config.head_dim), head_pad=padded(config.head_dim),
            act_bytes={"int8": 1, "bf16": 2}.get(self._kind, 4), weight_bytes=self._weight_dtype.itemsize,
            qk_norm=config.qk_norm,
        )  # fmt: skip
        group = config.num_heads // config.num_kv_heads
        self._tile_tokens = max(1, TILE_ROWS // group)
        self._set(tile_tokens=self._tile_tokens, tile_rows=self._tile_tokens * group)
        phases = 3 + config.num_layers * PHASES_PER_LAYER
        self._keep("counters", np.zeros(phases * PHASE_BYTES, np.uint8))

    def _lay_out_pages(self, num_pages: int, page_size: int, host_pages: int) -> None:
        config, size = self.config, self._kv_dtype.itemsize
        blocks = padded(page_size) // LANES
        keys, values = blocks * LANES * config.head_dim, page_size * padded(config.head_dim)
        shape = (config.num_layers, num_pages, config.num_kv_heads, keys + values)
        self._keep("kv", huge(int(np.prod(shape)) * size, held=True))  # no step shall pay for it
        pages = torch.from_numpy(self._kept["kv"]).view(self._kv_dtype).view(shape)
        self._keys = pages[..., :keys].view(*shape[:3], blocks, config.head_dim, LANES)
        self._values = pages[..., keys:].view(*shape[:3], page_size, -1)
        self._host = HostPages(pages, 1, host_pages)
        self.kv_bytes_per_token = pages[:, 0].nbytes // page_size
        self._set(
            kv_bytes=size, num_pages=num_pages, page_size=page_size, page_blocks=blocks, value_at=keys * size,
            head_page_bytes=(keys + values) * size,
        )  # fmt: skip
        positions = min(config.max_position_embeddings, num_pages * page_size)
        angles = torch.arange(positions)[:, None].float() * inverse_frequencies(config)
        self._keep("rotations", torch.stack((angles.cos(), angles.sin()), 1).numpy())

    def _pack(self, weights: Weights) -> None:
        config, dtype = self.config, self._weight_dtype
        hidden, inner, mixed = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
        qkv = mixed + 2 * config.num_kv_heads * config.head_dim
        shapes = [(qkv, hidden), (hidden, mixed), (2 * inner + LANES, hidden), (hidden, inner)] * config.num_layers
        shapes.append((config.vocab_size, hidden))
        arena = Arena(sum(packed_bytes(*shape, dtype.itemsize) for shape in shapes))
        self._keep("zeros", np.zeros(padded(max(outputs for outputs, _ in shapes)) + LANES, np.float32))
        zeros = int(self._kept["zeros"].ctypes.data)
        norms = np.zeros((2 * config.num_layers + 1, padded(hidden)), np.float32)
        qk_norms = np.zeros((2 * config.num_layers, padded(config.head_dim)), np.float32)
        smoothing = Smoothing(config, weights) if self._kind == "int8" else None
        packed = []
        for i, layer in enumerate(weights.layers):
            layer = smoothing.layer(i, layer) if smoothing else layer
            norms[2 * i, :hidden], norms[2 * i + 1, :hidden] = layer.input_norm, layer.mlp_norm
            if layer.q_norm is not None and layer.k_norm is not None:
                qk_norms[2 * i, : config.head_dim], qk_norms[2 * i + 1, : config.head_dim] = layer.q_norm, layer.k_norm
            packed += [pack(arena, part, dtype, zeros) for part in (layer.qkv, layer.out)]
            packed += [pack_gate_up(arena, layer.gate_up, dtype, zeros), pack(arena, layer.down, dtype, zeros)]
        norms[-1, :hidden], head = smoothing.head(weights) if smoothing else (weights.norm, weights.head)
        packed.append(pack(arena, Linear(head), dtype, zeros))
        self._arena, self.weights_bytes = arena, arena.used
        self._keep("linears", np.array([astuple(p) for p in packed], LINEAR))
        self._keep("norms", norms)
        self._keep("qk_norms", qk_norms)

    # --- steps ---

    def copy(self, copies: tuple[Copy | Swap, ...]) -> None:
        """Do the copies of a plan, in order."""
        self._host.in_order(copies, self._copy)

    def _copy(self, copy: Copy) -> None:
        src, dst, tokens = copy
        whole, rest = divmod(tokens, LANES)
        self._keys[:, dst, :, :whole] = self._keys[:, src, :, :whole]
        if rest:
            self._keys[:, dst, :, whole, :, :rest] = self._keys[:, src, :, whole, :, :rest]
        self._values[:, dst, :, :tokens] = self._values[:, src, :, :tokens]

    def forward(self, batch: Batch) -> Tensor:
        """float32 logits [draws, vocab], valid until the next call."""
        tokens, draws = len(batch.tokens), len(batch.draw_rows)
        if not tokens:
            return torch.empty(0, self.config.vocab_size)
        self._grow(tokens, draws, int(batch.keys.max()))
        self._put(batch)
        x = torch.from_numpy(self._scratch["x"])
        x[:tokens, : self.config.hidden_size] = self._embed[torch.from_numpy(batch.tokens)]
        self._run()
        return torch.from_numpy(self._scratch["logits"])[:draws, : self.config.vocab_size]

    def _grow(self, tokens: int, draws: int, keys: int) -> None:
        """Make scratch arrays large enough; they only ever grow."""
        config, step = self.config, self._step[0]
        team, hidden, inner, mixed = (
            int(step["team"]),
            int(step["hidden"]),
            int(step["inner"]),
            int(step["mixed_width"]),
        )
        qkv = padded((config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        widest, tile_rows = max(hidden, inner, mixed), int(step["tile_rows"])
        score_row = (-(-keys // int(step["page_size"])) * int(step["page_blocks"]) + 1) * LANES
        self._reserve("x", tokens * hidden, hidden)
        for name, count in {
            "act": max(tokens, draws) * widest,
            "act_scales": max(tokens, draws),
            "spare": team * max(hidden, inner),
            "qkv": tokens * qkv,
            "q": tokens * config.num_heads * config.head_dim,
            "mixed": tokens * mixed,
            "gate_up": tokens * 2 * inner,
            "outs": team * tile_rows * int(step["head_pad"]),
        }.items():
            self._reserve(name, count)
        self._reserve("logits", draws * padded(config.vocab_size), padded(config.vocab_size))
        if score_row * 4 > step["score_row"]:
            self._set(score_row=2 * score_row * 4)
            self._reserve("scores", team * tile_rows * 2 * score_row)

    def _reserve(self, name: str, count: int, width: int = 1) -> None:
        have = self._scratch.get(name)
        if have is None or have.size < count:
            self._scratch[name] = huge(4 * 2 * max(count, 1)).view(np.float32)[: 2 * count].reshape(-1, width)
            self._step[name] = self._scratch[name].ctypes.data

    def _put(self, batch: Batch) -> None:
        """Point the step at a batch, and cut its chunks into attention tiles, costly ones first."""
        lengths = np.diff(batch.first_row)
        counts = -(-lengths // self._tile_tokens)
        chunk = np.repeat(np.arange(len(counts)), counts)
        start = (np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)) * self._tile_tokens
        order = np.argsort(
            -np.minimum(batch.keys[chunk] - lengths[chunk] + start + self._tile_tokens, batch.keys[chunk])
        )
        self._keep("tile_chunk", chunk[order])
        self._keep("tile_start", start[order])
        for name in ("positions", "slots", "first_row", "keys", "pages", "draw_rows"):
            self._keep(name, getattr(batch, name))
        self._set(
            tokens=len(batch.tokens), draws=len(batch.draw_rows), tiles=len(chunk), pages_row=batch.pages.strides[0]
        )

    def _run(self) -> None:
        self._kept["counters"].fill(0)
        where = self._step.ctypes.data
        if self._parallel:
            self._parallel(self._entry, where, int(self._step[0]["team"]), 0)
        else:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._entry)(where)

    def take_cycles(self) -> dict[str, int]:
        """Cycles that thread 0 spent since the last call, by part."""
        spent = {part: int(self._step[0][part]) for part in PARTS}
        self._set(**dict.fromkeys(PARTS, 0))
        return spent


def _parallel_call() -> Any:
    """OpenMP's `GOMP_parallel(function, data, threads, flags)` of the library torch runs on, None where it has none."""
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype = None
    return function
