"""All rules over one repository: findings in the order of files and lines, and the same as plain values for JSON.

Must not know how they are shown.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence

from config_gen.lint.repository import Repository
from config_gen.lint.rule import RULES, SEVERITIES, Finding, Rule, Spot

STORIES = "files text backend tensors batching queue instances transactions warmup ensemble flags"


def rules() -> Mapping[str, Rule]:
    """All of them by id, in the order of their stories."""
    for story in STORIES.split():
        importlib.import_module(f"config_gen.lint.rules_{story}")
    return RULES


def judge(repository: Repository) -> list[Finding]:
    """What every rule says of it. Texts are printable, whatever bytes the files hold."""
    found = [Finding(rule, _printable(spot)) for rule in rules().values() for spot in rule.check(repository)]
    return sorted(found, key=lambda it: (it.spot.file, it.spot.line, SEVERITIES.index(it.rule.severity), it.rule.id))


def _printable(spot: Spot) -> Spot:
    return Spot(_clean(spot.file), spot.line, _clean(spot.what))


def _clean(text: str) -> str:
    """No surrogates, and nothing that moves a terminal's cursor."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """By severity, all three."""
    found = Counter(finding.rule.severity for finding in findings)
    return {severity: found[severity] for severity in SEVERITIES}


def as_json(folder: str, findings: Sequence[Finding]) -> dict[str, object]:
    listed = [
        {
            "rule": finding.rule.id,
            "severity": finding.rule.severity,
            "file": finding.spot.file,
            "line": finding.spot.line,
            "what": finding.spot.what,
            "why": finding.rule.why,
            "fix": finding.rule.fix,
        }
        for finding in findings
    ]
    return {"repository": folder, "counts": counts(findings), "findings": listed}
