"""A diagnosis for people: what to do first in one sentence, then every finding, then the checklists.

Must not know rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from observe.amounts import show_time
from observe.doctor.diagnosis import Diagnosis
from observe.doctor.finding import Check, Finding

COLOURS = {"cause": "bold red", "problem": "yellow", "hint": "cyan"}
ANSWERS = {"yes": "green", "no": "bold red", "unknown": "dim"}


def shown(diagnosis: Diagnosis) -> RenderableType:
    """All of it."""
    facts = diagnosis.facts
    who = ", ".join(
        [*(it.model for it in facts.llms), *(it.model for it in facts.unary), *(it.gpu for it in facts.cards)]
    )
    over = f"{facts.samples} samples over {show_time(facts.seconds)}: {who or 'neither a model nor a GPU'}"
    return Group(
        Text(first(diagnosis), style="bold"),
        *(Text(note, style="dim") for note in (f"{over}.", *facts.notes)),
        *(part for finding in diagnosis.findings for part in _finding(finding)),
        Text("\nChecklist", style="bold"),
        _checks(diagnosis.checks),
    )


def first(diagnosis: Diagnosis) -> str:
    """One sentence: what to do."""
    if not diagnosis.findings:
        return "Healthy: nothing to mend is seen."
    top = diagnosis.findings[0]
    if diagnosis.healthy:
        return f"Healthy; a hint: {top.remedy}."
    return f"{top.about}: {top.title}; {top.remedy}."


def _finding(finding: Finding) -> Iterator[RenderableType]:
    title = (f"{finding.about}: {finding.title}", "bold")
    sure = f", confidence {finding.confidence.share:.0%}"
    yield Text.assemble("\n", (finding.severity, COLOURS[finding.severity]), " ", title, sure)
    yield _indented(f"{'; '.join(finding.confidence.reasons)}.", 2, "dim")
    for evidence in finding.evidence:
        line = Text(evidence.told)
        line.append(f"  [{evidence.source}]", style="dim")
        yield Padding(line, (0, 0, 0, 2))
    yield _indented(f"Do: {finding.remedy}.", 2)
    for symptom in finding.symptoms:
        yield _indented(
            f"Explains: {symptom.about}: {symptom.title} ({_numbers(symptom)}). Look again when this is mended.", 2
        )


def _numbers(finding: Finding) -> str:
    return "; ".join(evidence.told for evidence in finding.evidence[:2])


def _indented(text: str, by: int, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, by))


def _checks(checks: tuple[Check, ...]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(ratio=2)
    table.add_column(no_wrap=True)
    table.add_column(ratio=3)
    for check in checks:
        table.add_row(Text(check.question), Text(check.answer, style=ANSWERS[check.answer]), Text(check.told))
    return table
