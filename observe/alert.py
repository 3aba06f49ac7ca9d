"""An alert as data, and how its parts are written: durations, selectors, the text that says what to do.

Must not know which alerts there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["critical", "warning"]
MINUTE = 60.0  # seconds
WINDOW = 5 * MINUTE  # over which rates are taken where nothing needs a longer one


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. `hold` is the seconds that `expr` must be true before it fires; texts may hold templates."""

    name: str
    expr: str
    hold: float
    severity: Severity
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def rule(self) -> dict[str, Any]:
        """As it stands in a rule file."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": span(self.hold),
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def span(seconds: float) -> str:
    """A duration in whole ms, as Prometheus reads it: `2m`, `90s`, `1500ms`."""
    ms = round(seconds * 1000)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms % size == 0 and (ms or unit == "s"):
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def series(metric: str, **labels: str) -> str:
    """A selector: `gapless_waiting{model="chat",tier="api"}`. A value that opens with ~ is a regular expression."""
    wanted = [f'{name}=~"{value[1:]}"' if value[:1] == "~" else f'{name}="{value}"' for name, value in labels.items()]
    return f"{metric}{{{','.join(wanted)}}}" if wanted else metric


def number(value: float) -> str:
    """As exact as it is, without a needless point: `2`, `0.95`, `0.0015`."""
    return f"{value:.12g}"


def plain(text: str) -> str:
    """Text of the file within one that may hold templates: nothing in it is one."""
    return text.replace("{{", '{{ "{{" }}')
