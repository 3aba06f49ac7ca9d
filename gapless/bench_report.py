"""What `bench engine` says of its runs: medians of alternatives, and where a step's time goes.

Must not know engines or how runs were made.
"""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from decode.options import ServiceOptions

PARTS = ("linear", "attention", "sampling", "other", "scheduling")


def name(case: ServiceOptions) -> str:
    """An alternative in a word or two."""
    cache = "cache" if case.prefix_cache else "no cache"
    return f"{case.weights} {case.mode} {case.max_num_seqs}, {cache}"


def merge(case: ServiceOptions, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All runs of an alternative, with the one in the middle."""
    reached = sorted(r["output_tokens_per_s"] for r in runs)
    middle = min(runs, key=lambda r: abs(r["output_tokens_per_s"] - statistics.median(reached)))
    return {
        "case": name(case),
        "weights": case.weights,
        "mode": case.mode,
        "concurrency": case.max_num_seqs,
        "prefix_cache": case.prefix_cache,
        "max_num_batched_tokens": case.max_num_batched_tokens,
        "device": case.device,
        "output_tokens_per_s": {"median": statistics.median(reached), "min": reached[0], "max": reached[-1]},
        "median_run": middle,
        "runs": runs,
    }


def rates(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Output tokens/s: median (min-max); latencies of the median run, P50/P99 in ms", box=None)
    for title in ("case", "tokens/s", "req/s", "TTFT", "ITL", "peak MiB"):
        table.add_column(title, justify="left" if title == "case" else "right", no_wrap=True)
    for row in results:
        rate, run = row["output_tokens_per_s"], row["median_run"]
        table.add_row(
            row["case"],
            f"{rate['median']:.1f} ({rate['min']:.0f}-{rate['max']:.0f})",
            f"{run['requests_per_s']:.2f}",
            f"{run['ttft_ms']['p50']:.0f}/{run['ttft_ms']['p99']:.0f}",
            f"{run['itl_ms']['p50']:.1f}/{run['itl_ms']['p99']:.1f}",
            str(run["peak_rss_mib"]),
        )
    return table


def split(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Where a step's time goes, ms per step on average, and the scheduler's share", box=None)
    for title in ("case", *PARTS, "share"):
        table.add_column(title, justify="left" if title == "case" else "right", no_wrap=True)
    for row in results:
        spent = row["median_run"]["step_ms"]
        parts = [f"{spent[p]:.2f}" if p in spent else "-" for p in PARTS]
        table.add_row(row["case"], *parts, f"{spent['scheduling'] / sum(spent.values()):.2%}")
    return table
