"""Alerts of what models run on: the server, the host's memory, the cards as DCGM sees them.

Of DCGM only fields are used that are there under MIG, too. Must not know tiers or targets.
"""

from __future__ import annotations

from collections.abc import Iterator

from config_gen.sla.spec import Hardware
from observe import triton_metrics
from observe.alert import MINUTE, WINDOW, Alert, number, plain, series, span

SERVER, CARDS = "triton", "dcgm"  # jobs of deploy/observability/prometheus.yml
BUSY = 0.85  # share of the time that tensor cores compute
FULL = 0.95  # share of the host's memory
LEFT = 0.03  # share of a card's memory
TENSOR = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
FREE, USED, XID = "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS"


def server_alerts(models: list[str], pace: float) -> Iterator[Alert]:
    """Of the server and of each model as Triton lists it. All durations are multiplied by `pace`."""
    up = series("up", job=SERVER)
    yield Alert(
        "GaplessServerDown",
        f"{up} == 0 or absent({up})",
        MINUTE * pace,
        "critical",
        "The server does not answer",
        "Prometheus gets no metrics from it. The launcher starts a dead server again within seconds, and gives up "
        "after five deaths in a row: read its output and keep it with the server's log before starting it.",
    )
    for name in models:
        count = series(triton_metrics.COUNT, model=name)
        yield Alert(
            "GaplessModelNotReady",
            f"{up} == 1 unless on (job, instance) {count}",
            MINUTE * pace,
            "critical",
            f"{name}: not loaded",
            "The server is up without it. Its log says why a model was not loaded; an engine built for another machine "
            "or version is refused with the command that rebuilds it.",
            {"model": name},
        )
        yield Alert(
            "GaplessModelRestarted",
            f"resets({count}[{span(WINDOW * pace)}]) > 0",
            0.0,
            "warning",
            f"{name}: its process was replaced",
            "Triton's counters of it began anew. If nobody restarted it, it died, for instance because memory ran out. "
            f"The launcher's output says '{name} died' or '{name} is broken' and why; the kernel's log names a process "
            "that it killed for memory. Keep both.",
            {"model": name},
        )


def host_alerts(pace: float) -> Iterator[Alert]:
    """Of the host, as Triton sees it. All durations are multiplied by `pace`."""
    yield Alert(
        "GaplessHostMemoryShort",
        f"nv_cpu_memory_used_bytes / nv_cpu_memory_total_bytes > {number(FULL)}",
        MINUTE * pace,
        "critical",
        f"Over {FULL:.0%} of the host's memory is in use",
        "{{ $value | humanizePercentage }}. Soon the kernel kills what is largest, most likely a model. Say less in "
        "hardware.memory and plan again, or move what else runs there.",
    )


def card_alerts(hardware: Hardware, pace: float) -> Iterator[Alert]:
    """Of the cards; none without any. All durations are multiplied by `pace`."""
    if not hardware.gpus:
        return
    up, cards = series("up", job=CARDS), ", ".join(f"{gpu.count} x {plain(gpu.type)}" for gpu in hardware.gpus)
    yield Alert(
        "GaplessCardsUnseen",
        f"{up} == 0 or absent({TENSOR})",
        5 * MINUTE * pace,
        "warning",
        "Nothing is known of the cards",
        f"dcgm-exporter does not answer or has no {TENSOR}: alerts of {cards} are blind. It needs the capability "
        "SYS_ADMIN and a card with profiling fields (Volta or later, data centre).",
    )
    yield Alert(
        "GaplessTensorBusy",
        f"{TENSOR} > {number(BUSY)}",
        5 * MINUTE * pace,
        "warning",
        f"Card {{{{ $labels.gpu }}}}: tensor cores are active over {BUSY:.0%} of the time",
        f"{{{{ $value | humanizePercentage }}}} on {{{{ $labels.instance }}}}; the file has {cards}. Add a replica on "
        "another card: on this one it would only contend. Ask gapless plan with a higher count what it brings.",
    )
    yield from _card_trouble(pace)


def _card_trouble(pace: float) -> Iterator[Alert]:
    yield Alert(
        "GaplessCardMemoryShort",
        f"{FREE} / ({FREE} + {USED}) < {number(LEFT)}",
        0.0,
        "critical",
        f"Card {{{{ $labels.gpu }}}}: less than {LEFT:.0%} of its memory is free",
        "{{ $value | humanizePercentage }} is free. The next allocation may fail; that is an error of a step and no "
        "XID. Lower gpu_memory_utilization or kv_cache_memory, and look for processes that do not belong there.",
    )
    yield Alert(
        "GaplessCardFault",
        f"changes({XID}[{span(WINDOW * pace)}]) > 0 and {XID} > 0",
        0.0,
        "critical",
        "Card {{ $labels.gpu }}: the driver reported a fault (XID)",
        f"{{{{ $labels.instance }}}}, {XID} has its number. 13, 31 and 43 are mostly a program's; 48, 63, 64, 74, "
        "79, 92, 94 and 95 are the card's: drain it. Keep the kernel's log (dmesg, NVRM) and the server's. "
        "Running out of memory reports none.",
    )
