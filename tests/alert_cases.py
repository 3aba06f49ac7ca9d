"""Each kind of alert with what makes it fire: series as promtool writes them, healthy for six minutes, then broken."""

from __future__ import annotations

from dataclasses import dataclass

from config_gen.sla.spec import parse

SLA = parse("""
gapless: 1
hardware: {gpus: [{type: a100-80gb, count: 2}]}
tiers:
  interactive: {weight: 8, queue_timeout: 2s, max_queue: 64}
  batch: {weight: 1, max_queue: 36, idle_below: 40%}
models:
  chat:
    kind: llm
    source: wheel:any
    targets: {interactive: {ttft: 700ms, itl: 60ms, at: p95}, batch: {e2e: 400s, at: p90}}
    traffic:
      interactive: {rate: 4/s, prompt: {median: 40, p95: 160}, output: {median: 16, p95: 48}}
      batch: {rate: 1/s, prompt: {median: 40, p95: 160}, output: {median: 16, p95: 48}}
  embed:
    kind: onnx
    source: wheel:any
    targets: {interactive: {e2e: 30ms}, batch: {e2e: 200ms, at: p95}}
    traffic: {interactive: {rate: 40/s}, batch: {rate: 10/s}}
""")
STEP = 15  # seconds between samples
HEALTHY, BROKEN = 24, 60  # samples: six minutes, and a quarter of an hour
ONSET = HEALTHY * STEP  # seconds, of the first broken sample

Series = dict[str, tuple[float, float, float]]
"""By selector: the first value, what each healthy and what each broken sample adds."""


@dataclass(frozen=True)
class Case:
    """What breaks. `holds`: seconds that the alert waits. `needs`: those until its condition is true at the latest.

    Series of `steps` have one value in health and another one, or None, from the onset on; those of `grow` add to it.
    """

    alert: str
    labels: dict[str, str]
    holds: int
    grow: Series
    steps: dict[str, tuple[float, float | None]]
    needs: int = STEP


def histogram(metric: str, tier: str, healthy: dict[str, int], broken: dict[str, int]) -> Series:
    """Requests of a sample up to each edge."""
    of = f'model="chat",tier="{tier}"'
    found = {f'{metric}_bucket{{{of},le="{le}"}}': (0.0, float(healthy[le]), float(broken[le])) for le in healthy}
    return found | {f"{metric}_count{{{of}}}": (0.0, float(healthy["+Inf"]), float(broken["+Inf"]))}


def llm(alert: str, tier: str = "") -> tuple[str, dict[str, str]]:
    return alert, {"model": "chat"} | ({"tier": tier} if tier else {})


FULL_95 = {"0.5": 60, "0.7": 95, "1": 97, "+Inf": 100}  # P95 is 0.7 s at most: kept
FULL_94 = {"0.5": 60, "0.7": 94, "1": 97, "+Inf": 100}  # one too few
GAPS_95, GAPS_90 = (
    {"0.05": 90, "0.06": 95, "0.075": 98, "+Inf": 100},
    {"0.05": 80, "0.06": 90, "0.075": 99, "+Inf": 100},
)
WHOLE_90, WHOLE_80 = {"300": 50, "400": 90, "800": 99, "+Inf": 100}, {"300": 50, "400": 80, "800": 80, "+Inf": 100}
TENSOR = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
CARD = 'gpu="0",instance="host:9400"'
WAITING = 'gapless_waiting{model="chat",tier="interactive"}'
REJECTS = 'gapless_rejects_total{model="chat",tier="interactive",reason="queue_full"}'
PENDING = 'nv_inference_pending_request_count{model="embed"}'
REJECTED = 'nv_inference_request_failure{model="embed",reason="REJECTED"}'
EMBED = {"model": "embed"}
COUNT = 'nv_inference_count{model="embed",job="triton"}'
SERVICE = 'gapless_service_total{model="chat",tier="interactive"}'
BATCH = ('gapless_waiting{model="chat",tier="batch"}', 'gapless_service_total{model="chat",tier="batch"}')
ERRORS = 'gapless_finished_total{model="chat",tier="batch",reason="error",instance="a"}'
READY: dict[str, tuple[float, float | None]] = {
    'up{job="triton"}': (1, 1),
    'up{job="dcgm"}': (1, 1),
    'nv_inference_count{model="chat",job="triton"}': (9, 9),
    COUNT: (9, 9),
    f"{TENSOR}{{{CARD}}}": (0.1, 0.1),
}

CASES = (
    Case(
        *llm("GaplessTtftOverTarget", "interactive"),
        120,
        histogram("gapless_ttft_seconds", "interactive", FULL_95, FULL_94),
        {},
        300,
    ),
    Case(
        *llm("GaplessItlOverTarget", "interactive"),
        120,
        histogram("gapless_itl_seconds", "interactive", GAPS_95, GAPS_90),
        {},
        60,
    ),
    Case(
        *llm("GaplessE2eOverTarget", "batch"),
        120,
        histogram("gapless_e2e_seconds", "batch", WHOLE_90, WHOLE_80),
        {},
        60,
    ),
    Case(*llm("GaplessRefusals", "interactive"), 60, {REJECTS: (7, 0, 1)}, {}),
    Case(*llm("GaplessStarving", "interactive"), 60, {SERVICE: (0, 100, 0)}, {WAITING: (3, 3)}, 75),
    Case(*llm("GaplessStarving", "batch"), 600, {BATCH[1]: (0, 100, 0)}, {BATCH[0]: (3, 3)}, 75),
    Case(
        *llm("GaplessPagesShort"),
        180,
        {},
        {'gapless_pages_used{model="chat"}': (85, 86), 'gapless_pages_total{model="chat"}': (100, 100)},
    ),
    Case(*llm("GaplessStepFailed"), 0, {ERRORS: (0, 0, 1)}, {}),
    Case(*llm("GaplessUnhealthy"), 60, {}, {'gapless_healthy{model="chat"}': (1, 0)}),
    Case(
        "GaplessE2eOverTarget",
        EMBED,
        120,
        {},
        {'nv_inference_request_summary_us{model="embed",quantile="0.95"}': (200_000, 200_001)},
    ),
    Case("GaplessRefusals", EMBED, 60, {REJECTED: (7, 0, 1)}, {}),
    Case("GaplessQueueFull", EMBED, 60, {'nv_inference_exec_count{model="embed"}': (0, 5, 5)}, {PENDING: (99, 100)}),
    Case("GaplessStarving", EMBED, 60, {'nv_inference_exec_count{model="embed"}': (0, 5, 0)}, {PENDING: (9, 9)}, 75),
    Case(
        "GaplessRequestFailed",
        EMBED,
        0,
        {'nv_inference_request_failure{model="embed",reason="BACKEND",instance="a"}': (3, 0, 1)},
        {},
    ),
    Case("GaplessServerDown", {}, 60, {}, {'up{job="triton"}': (1, 0)}),
    Case("GaplessModelRestarted", EMBED, 0, {}, {COUNT: (500, 1)}),
    Case("GaplessModelNotReady", EMBED, 60, {}, {COUNT: (500, None)}),
    Case(
        "GaplessHostMemoryShort",
        {},
        60,
        {},
        {"nv_cpu_memory_used_bytes": (95, 96), "nv_cpu_memory_total_bytes": (100, 100)},
    ),
    Case("GaplessCardsUnseen", {}, 300, {}, {'up{job="dcgm"}': (1, 0)}),
    Case("GaplessTensorBusy", {}, 300, {}, {f"{TENSOR}{{{CARD}}}": (0.85, 0.86)}),
    Case(
        "GaplessCardMemoryShort",
        {},
        0,
        {},
        {f"DCGM_FI_DEV_FB_FREE{{{CARD}}}": (3, 2), f"DCGM_FI_DEV_FB_USED{{{CARD}}}": (97, 98)},
    ),
    Case("GaplessCardFault", {}, 0, {}, {f"DCGM_FI_DEV_XID_ERRORS{{{CARD}}}": (0, 79)}),
)
