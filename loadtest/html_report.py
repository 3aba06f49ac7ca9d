"""The report of a run as one HTML file that needs nothing else: no network, no script, every plot inside.

What comes from elsewhere (errors, names, the SLA file) is escaped. Must not know how plots are drawn or numbers found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from config_gen.sla.quantity import show_duration
from loadtest import html_tables
from loadtest.canvas import Picture
from loadtest.recording import Recording
from loadtest.report import Report, explained
from loadtest.verdict import Ruling

TEMPLATE = "report.html"


@dataclass(frozen=True)
class Section:
    """Plots under a title; `told` are sentences, also where there is no plot. Its address in the page is of-`name`."""

    name: str
    title: str
    pictures: Sequence[Picture]
    told: Sequence[str] = ()


@dataclass(frozen=True)
class Setting:
    """What a run was made with. `facts` and, of each model, `engines` are pairs of what and how."""

    sla: str  # the file's text
    facts: Mapping[str, str]
    engines: Mapping[str, Mapping[str, str]]


def _ruling(report: Report) -> Ruling:
    """Of the whole run."""
    if report.held:
        return "kept"
    missed = any(verdict.ruling == "missed" for model in report.models for verdict in model.verdicts)
    return "missed" if missed and report.void is None else "none"


def render(report: Report, taken: Recording, sections: Sequence[Section], setting: Setting) -> str:
    """The whole file."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        report=report,
        ruling=_ruling(report),
        title=f"Load test of {' and '.join(model.name for model in report.models)}",
        began=datetime.fromtimestamp(taken.client.began / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        duration=show_duration(report.duration),
        explained=explained(report),
        tables=html_tables,
        taken=taken,
        sections=sections,
        setting=setting,
    )
