"""Errors of a load by kind: what belongs to one request makes no kind of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from loadtest import error_kinds, html_tables
from loadtest.report import ModelReport, Report, as_json, show
from loadtest.samples import Sample
from loadtest.verdict import summarize

SECOND = 10**9
FAILED = Sample("", "chat", "api", 0, 0, None, SECOND, (), "failed", "", "", 4, 0, 0, 0)


def failed(*errors: str) -> list[Sample]:
    return [replace(FAILED, id=f"req{at}x", error=error) for at, error in enumerate(errors)]


@pytest.mark.parametrize(
    ("errors", "kinds"),
    [
        (["queue is full (64)"] * 3, {"queue is full (64)": 3}),
        (["queue is full (64)", "queue is full (32)"], {"queue is full (…)": 2}),
        (["request req0x: gone after 0.5 s", "request req1x: gone after 0.5 s"], {"request …: gone after 0.5 s": 2}),
        (["request req0x: gone"], {"request req0x: gone": 1}),
        (["request req9x: gone", "request req9x: gone"], {"request req9x: gone": 2}),  # not its own
        (["at 0x7f01 of gpu0", "at 0x7f02 of gpu0", "at 0x7f02 of gpu1"], {"at … of gpu0": 2, "at 0x7f02 of gpu1": 1}),
        (
            ["id 0a1b2c3d-0000-4000-8000-00000000000a ", "id 0a1b2c3d-0000-4000-8000-00000000000b "],
            {"id … ": 2},
        ),
        (["trace deadbeef0123 took 12ms", "trace deadbeef0124 took 9ms"], {"trace … took …ms": 2}),
        (["port 1.2abcdef1234567"], {"port 1.2abcdef1234567": 1}),
        (["a", "b", "b"], {"b": 2, "a": 1}),
    ],
)
def test_errors_of_one_kind_differ_in_what_is_of_one_request(errors: list[str], kinds: dict[str, int]) -> None:
    assert list(error_kinds.kinds(failed(*errors)).items()) == list(kinds.items())


def test_twenty_thousand_texts_are_one_kind() -> None:
    taken = failed(*(f"request req{at}x ({at} of the queue) was refused" for at in range(20_000)))
    [summary] = summarize(taken, ["api"], SECOND)
    assert summary.errors == {"request … (… of the queue) was refused": 20_000}


def test_a_dozen_kinds_are_shown_and_all_are_kept() -> None:
    """20 kinds, of which the n-th came n times: the rarest 8 came 1 + 2 + … + 8 = 36 times."""
    words = [f"error of {chr(97 + n)}" for n in range(20)]
    taken = failed(*(word for n, word in enumerate(words, start=1) for _ in range(n)))
    classes = summarize(taken, ["api"], SECOND)
    report = Report(SECOND, 0, 1, None, [ModelReport("chat", classes, [])], [])
    console = Console(width=120)
    with console.capture() as seen:
        show(report, console)
    lines = [line.strip() for line in seen.get().splitlines()]
    shown = [line for line in lines if "error of" in line]
    assert shown == [f"{n} × {words[n - 1]}" for n in range(20, 8, -1)]
    assert lines[lines.index(shown[-1]) + 1] == "and 8 more kinds"
    rows = list(html_tables.errors(report))
    assert [row.what for row in rows] == [*(words[n - 1] for n in range(20, 8, -1)), "and 8 more kinds"]
    assert rows[-1].cells[0].text == "36"
    assert len(as_json(report)["models"]["chat"]["classes"]["api"]["errors"]) == 20
