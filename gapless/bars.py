"""A bar: a claim about a number that was measured several times. Must not know what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Bar:
    """A claim about one number: `values` of each round, their median against `limit`. None is infinite."""

    name: str
    values: Sequence[float | None]
    bound: Literal["<=", ">=", "<"]
    limit: float

    @property
    def value(self) -> float:
        return statistics.median(float("inf") if value is None else value for value in self.values)

    @property
    def held(self) -> bool:
        if self.bound == ">=":
            return self.value >= self.limit
        return self.value < self.limit if self.bound == "<" else self.value <= self.limit

    def as_json(self) -> dict[str, Any]:
        value = None if self.value == float("inf") else self.value
        return asdict(self) | {"value": value, "held": self.held}


def line(bar: Bar) -> str:
    """Name, value, limit, ruling, and each value."""
    told = f"{'held  ' if bar.held else 'MISSED'}  {bar.name}: {_number(bar.value)} (limit {bar.bound} {bar.limit:g}"
    return told + (f"; rounds {', '.join(map(_number, bar.values))})" if len(bar.values) > 1 else ")")


def _number(value: float | None) -> str:
    return "∞" if value in (None, float("inf")) else f"{value:.3f}"


def ratio(value: float | None, other: float | None) -> float | None:
    """`value` over `other`, where None is infinite; over nothing, anything is infinite."""
    if value is None:
        return None
    if other is None:
        return 0.0
    return value / other if other else (None if value else 1.0)
