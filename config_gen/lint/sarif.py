"""Findings in SARIF 2.1.0, in which code hosts show what a linter says beside the lines. Plain values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import PurePath, PurePosixPath

from config_gen.lint.rule import Finding, Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def log(folder: PurePath, findings: Sequence[Finding], rules: Mapping[str, Rule]) -> dict[str, object]:
    """One run. Addresses are those of the files as `folder` was given: relative where it was."""
    places = {id: place for place, id in enumerate(rules)}
    driver = {"name": "gapless lint", "version": version("gapless"), "rules": [_rule(rule) for rule in rules.values()]}
    results = [_result(folder, finding, places[finding.rule.id]) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.id.replace("-", " ")},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(folder: PurePath, finding: Finding, place: int) -> dict[str, object]:
    spot = finding.spot
    path = folder / spot.file
    address = PurePosixPath("/", path.as_posix()).as_uri()
    location = {
        "artifactLocation": {"uri": address if path.is_absolute() else address.removeprefix("file:///")},
        "region": {"startLine": spot.line},
    }
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": place,
        "level": finding.rule.severity,
        "message": {"text": f"{spot.what}. {finding.rule.why} {finding.rule.fix}"},
        "locations": [{"physicalLocation": location}],
    }
