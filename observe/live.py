"""The last seconds as a screen: a row for each model, and the machine under it. Must not know how samples are taken."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from config_gen.sla.quantity import show_duration
from observe import metrics, triton_metrics
from observe.amounts import show_bytes
from observe.window import Window

P99 = 0.99
LATENCIES = {"TTFT": metrics.TTFT.name, "ITL": metrics.ITL.name, "E2E": metrics.E2E.name}
ABSENT = "–"


def screen(window: Window) -> RenderableType:
    """All that is known of the window's end; rates and percentiles are over all of it."""
    over = Text(f"over {window.seconds:.0f} s; P99 by histogram buckets, of tiers together", style="dim")
    return Group(_models(window), Text(_host(window)), *(Text(line) for line in _gpus(window)), over)


def models(window: Window) -> list[str]:
    """Names of the models that Triton counts requests of."""
    return sorted({series.label("model") for series in window.select(triton_metrics.DONE)})


def _models(window: Window) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    titles = ("model", "req/s", "fail/s", "wait", "run", "KV pages", *(f"{it} P99" for it in LATENCIES))
    for title in titles:
        table.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    for model in models(window):
        table.add_row(*map(Text, row(window, model)))  # a name is no markup
    return table


def row(window: Window, model: str) -> list[str]:
    """Cells of one model. Requests of our LLMs wait inside the model; of others in Triton's queue."""
    ours = window.latest(metrics.WAITING.name, model=model)
    waiting = window.latest(triton_metrics.PENDING, model=model) if isnan(ours) else ours
    used, total = (window.latest(one.name, model=model) for one in (metrics.PAGES_USED, metrics.PAGES_TOTAL))
    return [
        model,
        _number(window.rate(triton_metrics.DONE, model=model), 1),
        _number(window.rate(triton_metrics.FAILED, model=model), 1),
        _number(waiting),
        _number(window.latest(metrics.RUNNING.name, model=model)),
        ABSENT if isnan(used) else f"{used:.0f} of {total:.0f}",
        *(_time(seconds) for seconds in _latencies(window, model)),
    ]


def _latencies(window: Window, model: str) -> Iterator[float]:
    """TTFT, ITL and E2E in seconds; of a model that answers in one piece its first response is the whole."""
    for shown, name in LATENCIES.items():
        found = window.quantile(P99, name, model=model)
        if isnan(found) and shown == "E2E":
            found = window.quantile(P99, triton_metrics.FIRST_RESPONSE, model=model) / 1000
        yield found


def _host(window: Window) -> str:
    cores = sorted((int(series.label("core")), one[-1]) for series, one in window.select("host_cpu_percent").items())
    busy = " ".join(f"{percent:.0f}%" for _, percent in cores if not isnan(percent))
    used, total = (window.latest(f"host_memory_{what}_bytes") for what in ("used", "total"))
    line = f"CPU {busy or ABSENT}   memory {_bytes(used)} of {_bytes(total)}"
    resident = window.latest("host_process_rss_bytes")
    return line if isnan(resident) else f"{line}   Triton's processes {_bytes(resident)}"


def _gpus(window: Window) -> Iterator[str]:
    for series in window.select("nvml_memory_used_bytes"):
        gpu = series.label("gpu")
        used, total, watts, heat, busy = (
            window.latest(f"nvml_{name}", gpu=gpu)
            for name in ("memory_used_bytes", "memory_total_bytes", "power_watts", "temperature_celsius",
                         "utilization_percent")
        )  # fmt: skip
        yield (
            f"GPU {gpu}: busy {_number(busy)}%   memory {_bytes(used)} of {_bytes(total)}   "
            f"{_number(watts)} W   {_number(heat)} °C"
        )
    for series, one in window.select("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE").items():
        gpu = series.label("gpu")
        shares = (one[-1], *(window.latest(f"DCGM_FI_PROF_{it}_ACTIVE", gpu=gpu) for it in ("SM", "DRAM")))
        tensor, sm, dram = (_number(100 * share) for share in shares)
        yield f"GPU {gpu}: tensor cores {tensor}%   SMs {sm}%   memory bandwidth {dram}%"


def _number(value: float, digits: int = 0) -> str:
    return ABSENT if isnan(value) else f"{value:.{digits}f}"


def _bytes(value: float) -> str:
    return ABSENT if isnan(value) else show_bytes(value)


def _time(seconds: float) -> str:
    return ABSENT if isnan(seconds) else show_duration(seconds * 1e9)
