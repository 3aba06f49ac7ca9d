"""A panel of a Grafana dashboard as data, and rows of them on Grafana's grid of 24 columns.

Field names are those of Grafana's classic dashboard model. Must not know which panels there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

COLUMNS, WIDTH, HEIGHT = 24, 8, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time. `queries` are (PromQL, legend); `limit` is drawn as a line, in `unit`, one of Grafana's."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    limit: float | None = None
    about: str = ""

    def model(self, number: int, at: int, top: int) -> dict[str, Any]:
        """As it stands in a dashboard: the `at`-th beside each other, from row `top` of the grid."""
        custom: dict[str, Any] = {"drawStyle": "line", "fillOpacity": 10, "showPoints": "never"}
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if self.limit is not None:
            custom["thresholdsStyle"] = {"mode": "line"}
            steps.append({"color": "red", "value": self.limit})
        return {
            "id": number,
            "type": "timeseries",
            "title": self.title,
            "description": self.about,
            "datasource": DATASOURCE,
            "gridPos": {"x": at * WIDTH, "y": top, "w": WIDTH, "h": HEIGHT},
            "targets": [
                {"refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
                for at, (expr, legend) in enumerate(self.queries)
            ],
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "min": 0,
                    "custom": custom,
                    "thresholds": {"mode": "absolute", "steps": steps},
                },
                "overrides": [],
            },
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        }


def rows(titled: Iterable[tuple[str, list[Panel]]]) -> Iterator[dict[str, Any]]:
    """Rows with their panels below them, three beside each other."""
    number, top, abreast = 1, 0, COLUMNS // WIDTH
    for title, panels in titled:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        for at, panel in enumerate(panels):
            yield panel.model(number + 1 + at, at % abreast, top + 1 + at // abreast * HEIGHT)
        number += 1 + len(panels)
        top += 1 + -(-len(panels) // abreast) * HEIGHT
