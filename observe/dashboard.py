"""From an SLA file to a Grafana dashboard: a row for each model, percentiles beside the targets, one for the machine.

Must not know disks, nor which Grafana shows it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from config_gen.sla.quantity import show_percentile
from config_gen.sla.spec import LlmModel, OnnxModel, Spec
from observe import metrics, triton_metrics
from observe.alert import number, series
from observe.alerts_llm import PAGES
from observe.alerts_machine import BUSY, FREE, FULL, TENSOR, USED, XID
from observe.alerts_unary import bound, quantile
from observe.panel import Panel, rows

RATE = "$__rate_interval"  # Grafana's, long enough for the interval of scrapes
SCHEMA = 39  # of the classic model that this was written for; newer Grafanas migrate it
UNPROMISED = Fraction(99, 100)


def dashboard(spec: Spec, title: str) -> dict[str, Any]:
    """The dashboard as Grafana imports and provisions it."""
    found = [("Machine", _machine(spec))]
    for name, model in spec.models.items():
        found.append((name, _llm(name, model) if isinstance(model, LlmModel) else _unary(name, model)))
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "gapless",
        "title": title,
        "tags": ["gapless"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "annotations": {"list": []},
        "panels": list(rows(found)),
    }


def _machine(spec: Spec) -> list[Panel]:
    memory = "nv_cpu_memory_used_bytes / nv_cpu_memory_total_bytes"
    panels = [
        Panel("Server answers", (('up{job="triton"}', "{{instance}}"),)),
        Panel("Host memory", ((memory, "{{instance}}"),), "percentunit", FULL),
        Panel("Host CPU", (("nv_cpu_utilization", "{{instance}}"),), "percentunit"),
    ]
    if spec.hardware.gpus:
        card = "{{instance}} {{gpu}} {{GPU_I_ID}}"
        panels += [
            Panel("Tensor cores active", ((TENSOR, card),), "percentunit", BUSY),
            Panel("Card memory in use", ((f"{USED} / ({FREE} + {USED})", card),), "percentunit"),
            Panel("Last fault (XID)", ((XID, card),)),
        ]
    return panels


def _llm(name: str, model: LlmModel) -> list[Panel]:
    def of(metric: metrics.Metric, **labels: str) -> str:
        return series(metric.name, model=name, **labels)

    def rate(metric: metrics.Metric, by: str = "") -> str:
        inner = f"rate({of(metric)}[{RATE}])"
        return f"sum by ({by}) ({inner})" if by else f"sum({inner})"

    pages = (metrics.PAGES_USED, metrics.PAGES_CACHED)
    return [
        Panel("Requests ended", ((rate(metrics.FINISHED, "tier, reason"), "{{tier}} {{reason}}"),), "reqps"),
        Panel("Requests refused", ((rate(metrics.REJECTS, "tier, reason"), "{{tier}} {{reason}}"),), "reqps"),
        Panel("Tokens", tuple((rate(m), m.name) for m in (metrics.PROMPT_TOKENS, metrics.OUTPUT_TOKENS)), "short"),
        *(
            _percentiles(name, model, tier, target)
            for tier in {**model.traffic, **model.targets}
            for target in metrics.PROMISED
            if tier not in model.targets or getattr(model.targets[tier], target) is not None
        ),
        Panel("Waiting", ((f"sum by (tier) ({of(metrics.WAITING)})", "{{tier}}"),)),
        Panel("Running", ((f"sum({of(metrics.RUNNING)})", "running"),)),
        Panel("Service by tier", ((rate(metrics.SERVICE, "tier"), "{{tier}}"),), about=metrics.SERVICE.help),
        Panel(
            "KV pages",
            tuple((f"{of(page)} / {of(metrics.PAGES_TOTAL)}", page.name) for page in pages),
            "percentunit",
            PAGES,
        ),
        Panel("Steps", ((rate(metrics.STEPS), "steps"),), "ops"),
        Panel("Preemptions", tuple((rate(m), m.name) for m in (metrics.PREEMPTIONS, metrics.SWAPS)), "ops"),
    ]


def _percentiles(name: str, model: LlmModel, tier: str, target: str) -> Panel:
    """The promised percentile of a tier beside its target, and the median; P99 where nothing is promised."""
    promised = model.targets.get(tier)
    limit = getattr(promised, target) / 1e9 if promised is not None else None
    buckets = series(f"{metrics.PROMISED[target].name}_bucket", model=name, tier=tier)
    counted = f"sum by (le) (rate({buckets}[{RATE}]))"
    shown = sorted({Fraction(1, 2), promised.at if promised is not None else UNPROMISED})
    return Panel(
        f"{target.upper()} of {tier}",
        tuple((f"histogram_quantile({number(float(at))}, {counted})", show_percentile(at)) for at in shown),
        "s",
        limit,
        "Measured in the server. The target is an edge of the histogram; between edges percentiles are interpolated.",
    )


def _unary(name: str, model: OnnxModel) -> list[Panel]:
    def rate(metric: str) -> str:
        return f"sum(rate({series(metric, model=name)}[{RATE}]))"

    failed = series(triton_metrics.FAILED, model=name)
    limit, at = bound(model.targets) if model.targets else (None, UNPROMISED)
    done = rate(triton_metrics.DONE)
    kinds = ("queue", "compute_input", "compute_infer", "compute_output")
    spent = tuple((f"{rate(triton_metrics.spent(kind))} / {done} / 1e6", kind) for kind in kinds)
    return [
        Panel("Requests answered", ((done, "answered"),), "reqps", about="Triton does not tell tiers apart."),
        Panel("Requests failed", ((f"sum by (reason) (rate({failed}[{RATE}]))", "{{reason}}"),), "reqps"),
        Panel(
            "E2E of all tiers",
            tuple(
                (
                    f"max({series(triton_metrics.SUMMARY, model=name, quantile=number(float(each)))}) / 1e6",
                    show_percentile(each),
                )
                for each in sorted({Fraction(1, 2), quantile(at)})
            ),
            "s",
            limit,
            "Of the last minute, in the server, and of all tiers together: Triton does not tell them apart.",
        ),
        Panel("Waiting", ((f"sum({series(triton_metrics.PENDING, model=name)})", "waiting"),)),
        Panel("Where the time goes", spent, "s", about="Mean of a request."),
        Panel("Requests a batch", ((f"{rate(triton_metrics.COUNT)} / {rate(triton_metrics.RUNS)}", "items"),)),
    ]
