"""The doctor on what was sampled of `gapless rounds` (see docs/LOG.md), recorded on the real server: two of its floods.

`tests/data/rounds` holds the engine's series at every second sample.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from config_gen.sla.spec import load
from observe import window
from observe.doctor.diagnosis import diagnose

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("folder", "title", "evidence"),
    [
        ("1-flood", "one request at a time", {"gapless_running, gapless_waiting", "gapless_slots"}),
        ("3-flood", "tiers missing", {"gapless_queue_seconds", "gapless_service_total", "gapless_engine_info"}),
    ],
)
@pytest.mark.parametrize("told", [True, False], ids=["with the SLA file", "without"])
def test_what_the_rounds_lack_is_named_as_the_cause_with_evidence(
    folder: str, title: str, evidence: set[str], told: bool
) -> None:
    seen = window.read(ROOT / "tests" / "data" / "rounds" / folder)
    found = diagnose(seen, load(ROOT / "sla" / "rounds.yaml") if told else None).findings
    assert (found[0].title, found[0].severity) == (title, "cause")
    assert evidence <= {one.source for one in found[0].evidence}
    assert found[0].confidence.share > 0.8 and found[0].remedy
    assert all(one.severity == "hint" for one in found[1:])  # whatever else was seen, this explains


def test_what_was_recorded_says_of_round_1_what_the_rule_needs() -> None:
    seen = window.read(ROOT / "tests" / "data" / "rounds" / "1-flood")
    [running] = seen.select("gapless_running").values()
    assert running.max() == 1 and seen.latest("gapless_slots") == 1
    assert seen.latest("gapless_waiting", tier="interactive") > 100
