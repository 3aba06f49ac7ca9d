"""Puts a service together from a built model directory and options: memory becomes pages, parts meet once, here.

The only place that knows both the executor and the engine's configuration. Must not know Triton or the SLA file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from decode import nvtx
from decode.accuracy_gate import gate
from decode.clock import WallClock
from decode.config import ConfigError, EngineConfig, pages_in
from decode.driver import Phase, Phases
from decode.engine import Engine
from decode.executors.model_config import ModelConfig
from decode.executors.torch_paged import TorchExecutor
from decode.options import ServiceOptions
from decode.service import Service
from decode.step_file import StepFile
from decode.step_log import StepLog
from decode.text import Tokenizer
from decode.warm_up import warm_up

KV_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 2}  # per element; pages beside int8 weights hold fp16
CPU_KV_MEMORY = 2 * 2**30  # bytes, where nothing is said
DEFAULT_SWAP = 4 * 2**30  # bytes of host memory beside a GPU
CPU_SWAP_RATE, GPU_SWAP_RATE = 10.0, 20.0  # bytes per ns that copying pages is taken to reach: one core, and PCIe 4
ACTIVATIONS = 2**30  # bytes kept free on a card for what a step allocates


def engine_config(model: ModelConfig, options: ServiceOptions) -> EngineConfig:
    """Limits for this model on this memory. Raises ConfigError when they contradict each other."""
    options.length(model.max_position_embeddings)  # told before memory is looked at
    per_token = model.kv_bytes_per_token(KV_BYTES[options.weights])
    pages = pages_in(_kv_memory(model, options), options.page_size, per_token)
    config = options.engine_config(pages, model.max_position_embeddings, model.eos_token_ids, model.vocab_size)
    page = options.page_size * per_token
    rate = CPU_SWAP_RATE if options.device == "cpu" else GPU_SWAP_RATE
    return replace(config, host_pages=_swap_space(options) // page, swap_page_time=max(1, int(page / rate)))


def build_executor(model_dir: Path, config: EngineConfig, options: ServiceOptions) -> TorchExecutor:
    """Load the weights; takes seconds. Raises ConfigError when int8 weights cost too much accuracy."""
    if options.weights == "int8" and options.device == "cpu":  # the CUDA path refuses it
        gate(model_dir)
    return TorchExecutor(
        model_dir,
        num_pages=config.num_pages,
        page_size=config.page_size,
        device=options.device,
        weights=options.weights,
        threads=options.threads or None,
        host_pages=config.host_pages,
    )


def build_service(model_dir: Path, options: ServiceOptions) -> Service:
    """A running service. Raises ModelError or ConfigError, one line each."""
    config = engine_config(ModelConfig.read(model_dir), options)
    tokenizer, executor = Tokenizer.load(model_dir), build_executor(model_dir, config, options)
    engine = Engine(config, warm_up(executor, config))
    log = None
    if options.step_log:
        log = StepLog(engine, StepFile(Path(options.step_log), config).take, WallClock())
    watching = [told for told in (log.phase if log else None, nvtx.phases(options.device)) if told is not None]
    return Service(engine, executor, tokenizer, log, _all(watching) if watching else None)


def _all(watching: Sequence[Phases]) -> Phases:
    """Tells each of them, in turn."""

    def enter(phase: Phase | None) -> None:
        for told in watching:
            told(phase)

    return enter


def _swap_space(options: ServiceOptions) -> int:
    if options.swap_space is not None:
        return options.swap_space
    return 0 if options.device == "cpu" else DEFAULT_SWAP


def _kv_memory(model: ModelConfig, options: ServiceOptions) -> int:
    if options.kv_cache_memory is not None:
        return options.kv_cache_memory
    if options.device == "cpu":
        return CPU_KV_MEMORY
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"device: {options.device} is not allowed here, for torch finds no GPU; cpu")
    total = torch.cuda.get_device_properties(options.device).total_memory
    weights = model.num_parameters * KV_BYTES[options.weights]
    memory = int(total * options.gpu_memory_utilization) - weights - ACTIVATIONS
    if memory <= 0:
        raise ConfigError(
            f"gpu_memory_utilization: {options.gpu_memory_utilization} of {total >> 20} MiB leaves nothing for KV "
            f"pages beside {weights >> 20} MiB of weights; raise it or take smaller weights"
        )
    return memory
