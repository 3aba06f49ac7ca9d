"""The metrics that a served model publishes, declared as data: name, help, kind, labels, buckets.

One place for what the model sets, what alerts and dashboards may ask for, and what the documentation lists. Must not
know how requests are scheduled, nor who publishes. Every metric carries the label `model`; times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `labels` come beside `model`; `buckets` are upper bounds of a histogram."""

    name: str
    help: str
    kind: Kind
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GAPS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10)
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)

RUNNING = Metric("gapless_running", "Requests that hold KV pages now", "gauge")
WAITING = Metric("gapless_waiting", "Requests that wait to start or, preempted, to go on", "gauge", ("tier",))
PAGES_USED = Metric("gapless_pages_used", "KV pages leased by running requests", "gauge")
PAGES_CACHED = Metric("gapless_pages_cached", "KV pages kept for their prefix and free to take", "gauge")
PAGES_TOTAL = Metric("gapless_pages_total", "KV pages of the engine", "gauge")
HEALTHY = Metric("gapless_healthy", "1 while the engine answers, 0 when it is broken", "gauge")
PREFIX_HITS = Metric("gapless_prefix_hit_tokens_total", "Prompt tokens taken from the prefix cache", "counter")
PROMPT_TOKENS = Metric("gapless_prompt_tokens_total", "Prompt tokens of requests that ran", "counter")
OUTPUT_TOKENS = Metric("gapless_output_tokens_total", "Tokens drawn", "counter")
STEPS = Metric("gapless_steps_total", "Steps executed", "counter")
PREEMPTIONS = Metric("gapless_preemptions_total", "Requests that lost their pages and were queued again", "counter")
SWAPS = Metric("gapless_swaps_total", "Preemptions that saved the pages in host memory", "counter")
SERVICE = Metric(
    "gapless_service_total", "Prompt and output tokens computed, times cost: what weights share", "counter", ("tier",)
)
REJECTS = Metric(
    "gapless_rejects_total", "Requests refused; tier is empty where it does not exist", "counter", ("tier", "reason")
)
FINISHED = Metric("gapless_finished_total", "Accepted requests that ended", "counter", ("tier", "reason"))
TTFT = Metric("gapless_ttft_seconds", "Arrival to first token", "histogram", ("tier",), _WAITS)
ITL = Metric("gapless_itl_seconds", "Gap between two tokens of a request", "histogram", ("tier",), _GAPS)
E2E = Metric("gapless_e2e_seconds", "Arrival to last token", "histogram", ("tier",), _WHOLE)
QUEUE = Metric("gapless_queue_seconds", "Arrival to first step", "histogram", ("tier",), _WAITS)
PROMPT_LENGTH = Metric(
    "gapless_prompt_length_tokens", "Prompt of a request that ended", "histogram", ("tier",), _LENGTHS
)
OUTPUT_LENGTH = Metric(
    "gapless_output_length_tokens", "Output of a request that ended", "histogram", ("tier",), _LENGTHS
)
STEP = Metric("gapless_step_seconds", "A step, from its plan to its events", "histogram", (), _STEPS)
STEP_PARTS = Metric(
    "gapless_step_part_seconds_total", "Time that steps spent in a part of the model", "counter", ("part",)
)
SLOTS = Metric("gapless_slots", "Requests that may run at once", "gauge")
ENGINE = Metric(
    "gapless_engine_info",
    "Always 1; the labels say how the engine runs",
    "gauge",
    ("policy", "mode", "prefix_cache", "weights", "device", "max_model_len", "max_num_batched_tokens"),
)

METRICS = (
    RUNNING,
    WAITING,
    PAGES_USED,
    PAGES_CACHED,
    PAGES_TOTAL,
    HEALTHY,
    PREFIX_HITS,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    STEPS,
    PREEMPTIONS,
    SWAPS,
    SERVICE,
    REJECTS,
    FINISHED,
    TTFT,
    ITL,
    E2E,
    QUEUE,
    PROMPT_LENGTH,
    OUTPUT_LENGTH,
    STEP,
    STEP_PARTS,
    SLOTS,
    ENGINE,
)

PROMISED = {"ttft": TTFT, "itl": ITL, "e2e": E2E}
"""Histogram of what a target bounds, by the target's name."""
FROM_ZERO = (
    (REJECTS, "queue_full"),
    (REJECTS, "queue_timeout"),
    (FINISHED, "error"),
)
"""Counters and their reason that are published of every tier before the first one happens: alerts ask for their rate,
and what appears with its first event has none."""


def edges(metric: Metric, target: int | None) -> tuple[float, ...]:
    """Buckets of a histogram for requests with this target in ns, which becomes an edge; None is none.

    With the target as an edge, and a finite one above it, a percentile is over the target by the histogram exactly when
    it is by the requests. Between two edges it would be a guess.
    """
    if target is None:
        return metric.buckets
    edge = target / 1e9
    above = () if edge < metric.buckets[-1] else (2 * edge,)
    return tuple(sorted({*metric.buckets, edge, *above}))
