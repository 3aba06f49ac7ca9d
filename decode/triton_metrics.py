"""Publishes the declared metrics of a served LLM on Triton's page.

An edge: knows pb_utils, whose families it fills. Must not know requests' tensors, nor what metrics mean to a reader.
"""

from __future__ import annotations

import queue
import sys
from typing import Any

import triton_python_backend_utils as pb_utils

from decode.config import EngineConfig
from decode.options import ServiceOptions
from decode.service import Service
from decode.stream import Output
from decode.types import FinishReason
from observe import metrics


def facts(config: EngineConfig, options: ServiceOptions) -> tuple[str, ...]:
    """How the engine runs, in the order of `metrics.ENGINE.labels`."""
    return (
        config.policy,
        config.mode,
        "on" if config.prefix_cache else "off",
        options.weights,
        options.device,
        str(config.max_model_len),
        str(config.max_num_batched_tokens),
    )


class Publisher:
    """Sets the declared metrics; used by the house-keeping thread only, except `observe`."""

    def __init__(self, model: str, service: Service, options: ServiceOptions) -> None:
        self._model = model
        self._service = service
        tiers = service.tiers
        self._edges: dict[tuple[str, ...], tuple[float, ...]] = {
            (metric.name, tier.name): metrics.edges(metric, getattr(tier, target))
            for target, metric in metrics.PROMISED.items()
            for tier in tiers
        }
        kinds = {
            "counter": pb_utils.MetricFamily.COUNTER,
            "gauge": pb_utils.MetricFamily.GAUGE,
            "histogram": pb_utils.MetricFamily.HISTOGRAM,
        }
        self._families = {
            m.name: pb_utils.MetricFamily(name=m.name, description=m.help, kind=kinds[m.kind]) for m in metrics.METRICS
        }
        self._series: dict[tuple[str, ...], Any] = {}
        self._counts: dict[tuple[str, ...], float] = {  # what warming up took is no step's
            (metrics.STEP_PARTS.name, part): seconds for part, seconds in service.step_parts.items()
        }
        self._ended: queue.SimpleQueue[tuple[str, Output]] = queue.SimpleQueue()
        self._failure = ""  # told last
        for tier in tiers:
            for metric, reason in metrics.FROM_ZERO:
                self._of(metric, tier.name, reason)
        self._of(metrics.ENGINE, *facts(service.config, options)).set(1.0)
        self._of(metrics.SLOTS).set(1.0 if service.config.mode == "serial" else float(service.config.max_num_seqs))

    def observe(self, tier: str, output: Output) -> None:
        """Remember how a request ended; any thread. What a failed step said also goes to the server's log, once."""
        if output.finish_reason is FinishReason.ERROR and output.message != self._failure:
            self._failure = output.message
            print(f"{self._model}: {output.message}", file=sys.stderr, flush=True)
        self._ended.put((tier, output))

    def publish(self, healthy: bool) -> int:
        """Bring every metric up to date; the number of steps since the last time."""
        stats = self._service.stats()
        self._of(metrics.HEALTHY).set(float(healthy))
        self._of(metrics.RUNNING).set(float(stats.running))
        for tier, count in stats.waiting.items():
            self._of(metrics.WAITING, tier).set(float(count))
        self._of(metrics.PAGES_USED).set(float(stats.pages_used))
        self._of(metrics.PAGES_CACHED).set(float(stats.pages_cached))
        self._of(metrics.PAGES_TOTAL).set(float(stats.pages_total))
        self._count(metrics.PREFIX_HITS, stats.prefix_hit_tokens)
        self._count(metrics.PROMPT_TOKENS, stats.prompt_tokens)
        self._count(metrics.OUTPUT_TOKENS, stats.output_tokens)
        steps = self._count(metrics.STEPS, stats.steps)
        self._count(metrics.PREEMPTIONS, stats.preemptions)
        self._count(metrics.SWAPS, stats.swaps)
        for took in self._service.take_step_times():
            self._of(metrics.STEP).observe(took / 1e9)
        for part, seconds in self._service.step_parts.items():
            self._count(metrics.STEP_PARTS, seconds, part)
        for tier, amount in stats.service.items():
            self._count(metrics.SERVICE, amount, tier)
        while not self._ended.empty():
            tier, output = self._ended.get()
            # A client may name any tier: what does not exist must not make series without end.
            self._request_ended(tier if tier in stats.service else "", output)
        return int(steps)

    def _request_ended(self, tier: str, output: Output) -> None:
        if output.reject is not None:
            self._of(metrics.REJECTS, tier, output.reject).increment(1)
            return
        self._of(metrics.FINISHED, tier, str(output.finish_reason)).increment(1)
        for metric, value in ((metrics.QUEUE, output.queue), (metrics.TTFT, output.ttft), (metrics.E2E, output.e2e)):
            if value is not None:
                self._of(metric, tier).observe(value / 1e9)
        if output.usage is not None:
            self._of(metrics.PROMPT_LENGTH, tier).observe(output.usage.prompt_tokens)
            self._of(metrics.OUTPUT_LENGTH, tier).observe(output.usage.output_tokens)
        for gap in output.itl:
            self._of(metrics.ITL, tier).observe(gap / 1e9)

    def _count(self, metric: metrics.Metric, total: float, *values: str) -> float:
        key = (metric.name, *values)
        more = total - self._counts.get(key, 0)
        self._of(metric, *values).increment(float(more))
        self._counts[key] = total
        return more

    def _of(self, metric: metrics.Metric, *values: str) -> Any:
        key = (metric.name, *values)
        series = self._series.get(key)
        if series is None:
            labels = {"model": self._model, **dict(zip(metric.labels, values, strict=True))}
            more = {"buckets": list(self._edges.get(key, metric.buckets))} if metric.kind == "histogram" else {}
            series = self._series[key] = self._families[metric.name].Metric(labels=labels, **more)
        return series
