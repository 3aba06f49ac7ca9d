"""The executor that owns real tensors: plan in, tokens out.

Builds index arrays, runs the forward, draws tokens. Must not know requests, tiers or queues.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import torch

from decode.executors import weights as weight_files
from decode.executors.batch import flatten
from decode.executors.model import Model
from decode.executors.model_config import ModelConfig
from decode.executors.paged_attention import PagedKV, gather_attention
from decode.plan import StepPlan, StepResult
from decode.sampler import Sampler

Precision = Literal["fp32", "bf16", "fp16", "int8"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}


class TorchExecutor:
    """Runs plans on a Hugging Face model directory (safetensors and config.json)."""

    def __init__(
        self,
        model_dir: Path | str,
        *,
        num_pages: int,
        page_size: int,
        device: str = "cpu",
        weights: Precision = "fp32",
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.config = ModelConfig.read(Path(model_dir))
        dtype, where = DTYPES[weights], torch.device(device)
        loaded = weight_files.load(Path(model_dir), self.config, dtype)
        self._model = Model(self.config, loaded, where)
        self._kv = PagedKV(self.config, num_pages, page_size, dtype, where)
        self._sampler = Sampler(self.config.vocab_size, where)
        self.profile: dict[str, float] = dict.fromkeys(("linear", "attention", "sampling", "other"), 0.0)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in KV pages, all layers, K and V."""
        kv = self._kv.pages
        return kv.nbytes // (kv.shape[2] * kv.shape[3])

    def warmup(self) -> None:
        """Nothing to compile."""

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. `elapsed` is wall time in nanoseconds."""
        begin = time.perf_counter_ns()
        self._kv.copy(plan.copies)
        batch = flatten(plan, self._kv.page_size)
        slots = torch.from_numpy(batch.slots)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self._kv.write(layer, slots, k, v)
            return gather_attention(self._kv, layer, q, batch)

        hidden = self._model.forward(torch.from_numpy(batch.tokens), torch.from_numpy(batch.positions), attend)
        logits = self._model.logits(hidden[torch.from_numpy(batch.draw_rows)])
        draws = [c.draw for c in plan.chunks if c.draw is not None]
        drawn, logprobs = self._sampler.draw(logits, draws)
        tokens, best = iter(drawn), iter(logprobs)
        return StepResult(
            tuple(next(tokens) if c.draw else None for c in plan.chunks),
            time.perf_counter_ns() - begin,
            tuple(next(best) if c.draw else None for c in plan.chunks) if logprobs else (),
        )
