"""Goodput: a request counts when it met every target of its tier."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from config_gen.plan import Plan
from config_gen.sla.spec import Targets, parse
from gapless import planbench
from gapless.parts import pick_parts
from loadtest.goodput import is_good
from loadtest.run import Client
from loadtest.samples import Sample

MS = 10**6
# The first token after 100 ms, then four more, 20 ms apart.
ANSWER = Sample(
    id="a",
    model="chat",
    tier="interactive",
    intended=1000 * MS,
    sent=1001 * MS,
    first=1100 * MS,
    end=1180 * MS,
    messages=tuple(((1100 + 20 * at) * MS, 1) for at in range(5)),
    outcome="ok",
    error="",
    finish_reason="length",
    asked=5,
    prompt_tokens=10,
    cached_tokens=0,
    output_tokens=5,
)


def targets(**wanted: str) -> Targets:
    return Targets(**wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "good"),
    [
        ({"ttft": "100ms"}, True),
        ({"ttft": "99ms"}, False),
        ({"itl": "20ms"}, True),
        ({"itl": "19ms"}, False),
        ({"e2e": "180ms"}, True),
        ({"e2e": "179ms"}, False),
        ({"ttft": "100ms", "itl": "20ms", "e2e": "180ms"}, True),
        ({"ttft": "100ms", "itl": "19ms", "e2e": "180ms"}, False),
    ],
)
def test_every_target_counts(wanted: dict[str, str], good: bool) -> None:
    assert is_good(ANSWER, targets(**wanted)) is good


def test_one_slow_gap_among_fast_ones_is_no_miss_of_the_mean() -> None:
    # Gaps of 5, 5, 5 and 65 ms are 20 ms a token.
    times = (1100, 1105, 1110, 1115, 1180)
    uneven = replace(ANSWER, messages=tuple((at * MS, 1) for at in times))
    assert is_good(uneven, targets(itl="20ms")) and not is_good(uneven, targets(itl="19ms"))


def test_what_was_refused_is_not_good_whatever_was_promised() -> None:
    refused = replace(ANSWER, outcome="rejected", first=None, end=None, messages=())
    assert not is_good(refused, None) and not is_good(refused, targets(e2e="10s"))
    assert is_good(ANSWER, None)


def test_a_plan_is_measured_by_the_goodput_of_all_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2 s: of three interactive answers two in time, one of batch, which has no target, none of idle."""
    text = """
gapless: 1
tiers: {interactive: {}, batch: {}, idle: {}}
models:
  chat:
    kind: llm
    source: wheel:some
    targets: {interactive: {ttft: 100ms}}
    traffic:
      interactive: {rate: 1/s, prompt: {median: 9, p95: 9}, output: {median: 5, p95: 5}}
      batch: {rate: 1/s, prompt: {median: 9, p95: 9}, output: {median: 5, p95: 5}}
      idle: {rate: 1/s, prompt: {median: 9, p95: 9}, output: {median: 5, p95: 5}}
"""
    late = replace(ANSWER, first=1101 * MS)
    taken = [ANSWER, late, replace(late, tier="batch"), ANSWER]
    monkeypatch.setattr(planbench, "server", lambda *_: nullcontext("nowhere"))
    monkeypatch.setattr(planbench, "run_job", lambda _: (taken, Client(0, 0, 0)))
    told = StringIO()
    bench = planbench.Bench(pick_parts(parse(text), None), Path(), 2 * 10**9, 1, 1, 0, Console(file=told))
    assert bench.measure(Plan((), (), 1), "it") == 1.5
    each = "chat interactive 1.0 of 1.5, chat batch 0.5 of 0.5, chat idle 0.0 of 0.0"
    assert told.getvalue() == f"it: 1.5 good requests/s ({each})\n"
