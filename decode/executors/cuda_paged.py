"""The CUDA path: weights and KV pages on a card, the plain torch forward, decode steps replayed as CUDA graphs.

It has not run on a GPU yet: the same class on the CPU, without graphs and kernel, is what its tests compare with the
CPU path. Must not know plans beyond their copies, nor requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decode import nvtx
from decode.config import ConfigError
from decode.executors.batch import Batch
from decode.executors.model import Model
from decode.executors.model_config import ModelConfig
from decode.executors.paged_attention import Attention, Inputs, PagedKV, pick_attention
from decode.executors.weights import Layer, Linear, Weights
from decode.plan import Copy, Swap

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class CudaModel:
    """A model on `device` with `num_pages` KV pages of `page_size` tokens, and one more that padding writes to.

    `attention` is picked by what the device can do when None. Raises ConfigError on a kind that it cannot hold.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kind: str,
        num_pages: int,
        page_size: int,
        device: torch.device,
        attention: Attention | None = None,
        host_pages: int = 0,
    ) -> None:
        if kind not in DTYPES:
            raise ConfigError(f"weights: {kind} is not allowed on device {device}; one of {', '.join(DTYPES)}")
        self.config, self._device = config, device
        self._range = nvtx.ranges(device)
        self._page_size, self._scratch_page = page_size, num_pages
        held = _moved(weights, device, DTYPES[kind])
        self.weights_bytes = _bytes(held)
        self._model = Model(config, held, device)
        self._kv = PagedKV(config, num_pages + 1, page_size, DTYPES[kind], device, host_pages)
        self.kv_bytes_per_token = self._kv.bytes_per_token
        self._attention = attention or pick_attention(config, self._kv.pages[0], self._scratch_page)
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None  # memory all graphs share

    def copy(self, copies: tuple[Copy | Swap, ...]) -> None:
        """Do the copies of a plan, in order."""
        self._kv.copy(copies)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """float32 logits [draws, vocab] on the device, valid until the next call."""
        chunks = len(batch.keys)
        if not chunks:
            return torch.empty(0, self.config.vocab_size, device=self._device)
        if len(batch.tokens) == chunks:
            every = self._decode(padded(batch, self._scratch_page, self._page_size))
            logits = every[torch.from_numpy(batch.draw_rows).to(self._device)]
        else:
            logits = self._run(self._inputs(batch))
        if not len(batch.draw_rows) and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # nobody reads a result, so nothing else would wait for this step
        return logits

    def _run(self, inputs: Inputs) -> Tensor:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._kv.write(layer, inputs.slots, k, v)
            return self._attention(q, self._kv.pages[layer], inputs)

        hidden = self._model.forward(inputs.tokens, inputs.positions, attend)
        return self._model.logits(hidden[inputs.draw_rows])

    def _decode(self, batch: Batch) -> Tensor:
        """Logits of every row of a padded batch; on a card by the graph of its shape, captured on first use."""
        inputs = self._inputs(batch)
        if self._device.type != "cuda":
            return self._run(inputs)
        shape = batch.pages.shape
        if shape not in self._graphs:
            with self._range("capture graph"):
                self._graphs[shape] = _Graph(self._run, inputs, self._pool)
        with self._range("replay graph"):
            return self._graphs[shape].replay(inputs)

    def _inputs(self, batch: Batch) -> Inputs:
        """A batch on the device."""
        with self._range("copy inputs"):
            return Inputs.of(batch, self._device)

    def take_cycles(self) -> dict[str, int]:
        """What runs on a card is not split by part."""
        return {"other": 1}


class _Graph:
    """One step of fixed shapes, captured: `replay` copies new inputs into its buffers and runs it again."""

    def __init__(self, run: Callable[[Inputs], Tensor], inputs: Inputs, pool: Any) -> None:
        self._inputs = inputs
        device, side = inputs.tokens.device, torch.cuda.Stream(inputs.tokens.device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # libraries set themselves up on a first run, which a capture does not allow
            run(inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(self._graph, pool=pool):
            self._logits = run(inputs)

    def replay(self, inputs: Inputs) -> Tensor:
        if inputs is not self._inputs:
            self._inputs.refill(inputs)
        self._graph.replay()
        return self._logits


def padded(batch: Batch, scratch_page: int, page_size: int) -> Batch:
    """A batch of one-token chunks, grown to a power of two of rows and of pages a row, so that few shapes exist.

    Rows that were added are token 0 at position 0 of the scratch page. Every row is drawn.
    """
    rows, width = batch.pages.shape
    size = _power_of_two(rows)
    more = size - rows
    pages = np.zeros((size, _power_of_two(width)), np.int64)
    pages[:rows, :width] = batch.pages
    pages[rows:] = scratch_page
    zeros = np.zeros(more, np.int64)
    return Batch(
        tokens=np.concatenate((batch.tokens, zeros)),
        positions=np.concatenate((batch.positions, zeros)),
        slots=np.concatenate((batch.slots, zeros + scratch_page * page_size)),
        first_row=np.arange(size + 1),
        keys=np.concatenate((batch.keys, zeros + 1)),
        pages=pages,
        draw_rows=np.arange(size),
    )


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def _moved(weights: Weights, device: torch.device, dtype: torch.dtype) -> Weights:
    """All weights on the device, read layer by layer."""

    def move(x: Tensor) -> Tensor:
        return x.to(device, dtype)

    def linear(x: Linear) -> Linear:
        return Linear(move(x.weight), None if x.bias is None else move(x.bias))

    def layer(x: Layer) -> Layer:
        q_norm, k_norm = (None if n is None else move(n) for n in (x.q_norm, x.k_norm))
        return Layer(
            move(x.input_norm), linear(x.qkv), q_norm, k_norm, linear(x.out), move(x.mlp_norm),
            linear(x.gate_up), linear(x.down),
        )  # fmt: skip

    embed = move(weights.embed)
    head = embed if weights.head is weights.embed else move(weights.head)
    return Weights(embed, [layer(x) for x in weights.layers], move(weights.norm), head)


def _bytes(weights: Weights) -> int:
    """Bytes of all weights; a tied embedding counts once."""
    held = [weights.embed, weights.norm] + [weights.head] * (weights.head is not weights.embed)
    for layer in weights.layers:
        held += [layer.input_norm, layer.mlp_norm, *(n for n in (layer.q_norm, layer.k_norm) if n is not None)]
        for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
            held += [linear.weight] + ([] if linear.bias is None else [linear.bias])
    return sum(x.nbytes for x in held)
