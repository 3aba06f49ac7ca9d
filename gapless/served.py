"""`bench triton`: one workload through the engine in this process and through a server, run after run.

What is compared is the way to the client: Triton, its Python backend, gRPC streaming and a client on the same cores.
"""

from __future__ import annotations

import json
import statistics
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from config_gen.percentiles import percentile
from decode import bench
from decode.assembly import CPU_KV_MEMORY, build_executor, engine_config
from decode.executors.model_config import ModelConfig
from decode.options import ServiceOptions
from decode.workload import Workload
from gapless.child import server
from loadtest.run import Job, run
from loadtest.samples import Planned, Sample

MODEL = "chat"
DRAIN = 600 * 10**9  # ns that answers may take after the last was sent
LOG = Path("out/bench/server.log")


def compare(
    work: Workload,
    repository: Path,
    case: ServiceOptions,
    rate: float | None,
    repeat: int,
    console: Console,
) -> dict[str, Any]:
    """Both ways `repeat` times in turn, each on a fresh engine; latencies in ms. RuntimeError on a lost token."""
    folder = repository / MODEL / "1"
    config = engine_config(ModelConfig.read(folder), case)
    executor = build_executor(folder, config, case)
    options = {
        "weights": case.weights,
        "max_num_seqs": str(case.max_num_seqs),
        "max_num_batched_tokens": str(case.max_num_batched_tokens),
        # Whatever the repository was configured for: both ways must be the same engine.
        "max_model_len": str(config.max_model_len),
        "kv_cache_memory": f"{(case.kv_cache_memory or CPU_KV_MEMORY) >> 20}MiB",
        "tiers": json.dumps({tier.name: {} for tier in case.tiers}),
    }
    alone, through = [], []
    for at in range(repeat):
        console.print(f"{case.weights}, {case.max_num_seqs} sequences, run {at + 1} of {repeat} …", highlight=False)
        engine = bench.summary(bench.measure(work, config, executor, rate), work, percentile)
        alone.append(engine)
        with server(repository, [MODEL], options, LOG) as url:
            through.append(_served(work, url, rate))
    rates = [t["output_tokens_per_s"] / a["output_tokens_per_s"] for a, t in zip(alone, through, strict=True)]
    return {
        "case": f"{case.weights} {case.max_num_seqs}",
        "ratio": statistics.median(rates),
        "ratios": rates,
        "engine": alone,
        "triton": through,
    }


def _served(work: Workload, url: str, rate: float | None) -> dict[str, Any]:
    moments = bench.arrivals(work.requests, rate)
    planned = [
        Planned(request.id, MODEL, "default", at, max_tokens=request.sampling.max_tokens, ids=request.prompt)
        for at, request in zip(moments, work.requests, strict=True)
    ]
    samples, client = run(Job(url, planned, moments[-1], DRAIN))
    for sample in samples:
        if sample.outcome != "ok" or sample.output_tokens != sample.asked:
            raise RuntimeError(f"request {sample.id}: {sample.output_tokens} of {sample.asked} tokens; {sample.error}")
    seconds = max(s.end or 0 for s in samples) / 1e9
    return {
        "output_tokens_per_s": sum(s.output_tokens for s in samples) / seconds,
        "seconds": seconds,
        "ttft_ms": _spread([first for s in samples if (first := s.ttft) is not None]),
        "itl_ms": _spread([gap for s in samples for gap in s.itl()]),
        "e2e_ms": _spread([s.e2e for s in samples]),
        "tokens_per_message": _per_message(samples),
        "client_cpu": client.cpu,
        "client_lag_ms": client.send_lag / 1e6,
    }


def _per_message(samples: list[Sample]) -> float:
    return sum(s.output_tokens for s in samples) / sum(len(s.messages) for s in samples)


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{q}": percentile(ordered, Fraction(q, 100)) / 1e6 for q in (50, 95, 99)}


def table(results: list[dict[str, Any]]) -> Table:
    """Medians over the runs; latencies through Triton, of its median run."""
    shown = Table(title="Output tokens/s, engine alone and through Triton (medians); ms P50/P99", box=None)
    for name in ("case", "engine", "Triton", "ratio", "TTFT", "ITL", "E2E", "client CPU"):
        shown.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    for row in results:
        alone, through = ([r["output_tokens_per_s"] for r in row[k]] for k in ("engine", "triton"))
        middle = sorted(row["triton"], key=lambda r: r["output_tokens_per_s"])[len(row["triton"]) // 2]
        latencies = [f"{middle[k]['p50']:.0f}/{middle[k]['p99']:.0f}" for k in ("ttft_ms", "itl_ms", "e2e_ms")]
        medians = [f"{statistics.median(x):.1f}" for x in (alone, through)]
        shown.add_row(row["case"], *medians, f"{row['ratio']:.2f}", *latencies, f"{middle['client_cpu']:.0%}")
    return shown
