"""A comparison of two runs: a table per model and tier for people, JSON for machines. Must not judge or measure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import isfinite, isinf
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from config_gen.sla.quantity import show_duration
from loadtest.comparison import Change, Line

STYLE: dict[Change, str] = {"better": "green", "worse": "bold red", "same": "dim", "unknown": "dim"}
WORD: dict[Change, str] = {"better": "better", "worse": "WORSE", "same": "", "unknown": "too few requests"}


def regressions(lines: Sequence[Line]) -> int:
    """How many metrics got worse."""
    return sum(line.change == "worse" for line in lines)


def show(lines: Sequence[Line], threshold: float, console: Console) -> None:
    """Print the comparison, its conclusion last."""
    for (model, tier), of in groupby(lines, key=lambda line: (line.model, line.tier)):
        console.print(Text(f"{model} {tier}", style="bold"))
        console.print(_table(list(of)), end="\n\n")
    console.print(
        "Within: drawn by blocks of the load, all lines together with 95 % confidence. A change counts that is more "
        f"than {threshold * 100:g} % and not within chance.",
        style="dim",
        highlight=False,
    )
    style = "bold red" if regressions(lines) else "bold green"
    console.print(conclusion(lines), style=style, highlight=False)


def conclusion(lines: Sequence[Line]) -> str:
    """One sentence."""
    known = [line for line in lines if line.change != "unknown"]
    if not known:
        return "Nothing could be compared: too few requests; load longer."
    better, worse = sum(line.change == "better" for line in known), regressions(known)
    improved = f", {better} better" if better else ""
    if worse:
        return f"Of {len(known)} metrics that could be compared {worse} got worse{improved}."
    return f"None of {len(known)} metrics that could be compared got worse{improved}."


def _table(lines: Sequence[Line]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("")
    for name in ("before", "now", "change", "within"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for line in lines:
        within = "" if line.low is None or line.high is None else f"{_percent(line.low)} to {_percent(line.high)}"
        style = STYLE[line.change]
        values = (_value(line, line.a), _value(line, line.b), _percent(line.ratio), within)
        table.add_row(line.metric, *values, Text(WORD[line.change]), style=style)
    return table


def _value(line: Line, value: float) -> str:
    if line.unit == "ns":
        return show_duration(value)
    return f"{value:.2f}" if line.unit == "/s" else f"{value:.2%}"


def _percent(ratio: float) -> str:
    """How much more than 1: `+12.3%`, `+∞`, `0.0%`."""
    if isinf(ratio):
        return "+∞"
    return f"{(ratio - 1) * 100:+.1f}%" if round(ratio - 1, 3) else "0.0%"


def as_json(lines: Sequence[Line], threshold: float) -> dict[str, Any]:
    """Durations in seconds, ratios of now to before; what is infinite or unknown is null."""
    return {
        "conclusion": conclusion(lines),
        "threshold": threshold,
        "regressions": regressions(lines),
        "metrics": [
            {
                "model": line.model,
                "tier": line.tier,
                "metric": line.metric,
                "unit": "s" if line.unit == "ns" else line.unit,
                "before": _finite(line.a / 1e9 if line.unit == "ns" else line.a),
                "now": _finite(line.b / 1e9 if line.unit == "ns" else line.b),
                "ratio": _finite(line.ratio),
                "within": None if line.low is None else [_finite(line.low), _finite(line.high)],
                "change": line.change,
            }
            for line in lines
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
