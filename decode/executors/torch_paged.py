"""The executor that owns real tensors: plan in, tokens out.

Builds index arrays, runs the forward, draws tokens. Must not know requests, tiers or queues.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from decode import nvtx
from decode.executors import weights as weight_files
from decode.executors.batch import flatten
from decode.executors.cpu_paged import CpuModel
from decode.executors.cuda_paged import CudaModel
from decode.executors.model_config import ModelConfig, Precision
from decode.plan import StepPlan, StepResult
from decode.sampler import Sampler


class TorchExecutor:
    """Runs plans on a model directory (safetensors and config.json)."""

    def __init__(
        self,
        model_dir: Path | str,
        *,
        num_pages: int,
        page_size: int,
        device: str = "cpu",
        weights: Precision = "fp32",
        threads: int | None = None,
        host_pages: int = 0,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.config = ModelConfig.read(model_dir)
        loaded = weight_files.load(Path(model_dir), self.config, torch.float32)
        self._model: CpuModel | CudaModel
        if device == "cpu":
            team = torch.get_num_threads()
            self._model = CpuModel(self.config, loaded, weights, num_pages, page_size, team, host_pages)
        else:
            where = torch.device(device)
            self._model = CudaModel(self.config, loaded, weights, num_pages, page_size, where, host_pages=host_pages)
        self._page_size = page_size
        self._range = nvtx.ranges(device)
        self._sampler = Sampler(self.config.vocab_size, device)
        self.profile: dict[str, float] = dict.fromkeys(("linear", "attention", "sampling", "other"), 0.0)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in KV pages, all layers, K and V."""
        return self._model.kv_bytes_per_token

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights as they are held."""
        return self._model.weights_bytes

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Run one step without drawing: float32 logits [draws, vocab] in chunk order, valid until the next step."""
        if plan.copies:
            with self._range("copy pages"):
                self._model.copy(plan.copies)
        with self._range("flatten"):
            batch = flatten(plan, self._page_size)
        with self._range("forward"):
            return self._model.forward(batch)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. `elapsed` is wall time in nanoseconds."""
        begin = time.perf_counter_ns()
        logits = self.logits(plan)
        forwarded = time.perf_counter_ns()
        draws = [c.draw for c in plan.chunks if c.draw is not None]
        with self._range("sample"):
            drawn, logprobs = self._sampler.draw(logits, draws)
        end = time.perf_counter_ns()
        self._account(forwarded - begin, end - forwarded)
        tokens, best = iter(drawn), iter(logprobs)
        return StepResult(
            tuple(next(tokens) if c.draw else None for c in plan.chunks),
            end - begin,
            tuple(next(best) if c.draw else None for c in plan.chunks) if logprobs else (),
        )

    def _account(self, forward: int, sampling: int) -> None:
        cycles = self._model.take_cycles()
        scale = forward / max(1, sum(cycles.values())) / 1e9
        for part, spent in cycles.items():
            self.profile[part] += spent * scale
        self.profile["sampling"] += sampling / 1e9
