"""Two runs of one load: a planted regression is found, noise is none, and what cannot be compared is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_triton import Asked as AskedOfServer
from fake_triton import Reply, at_once, fake_triton

from config_gen.sla.spec import Targets
from loadtest import recording
from loadtest.comparison import Line, compare
from loadtest.comparison_report import as_json, conclusion
from loadtest.recording import Recording, RecordingError, Sent
from loadtest.run import Client
from loadtest.same_load import Asked, DifferentLoads, check, check_client
from loadtest.samples import Planned, Sample

SECOND, MS = 10**9, 10**6
CLIENT = Client(send_lag=1.0 * MS, loop_lag=2.0 * MS, cpu=0.1)
TARGETS = Targets(e2e="5s", at="p95")  # type: ignore[arg-type]
CHAT, EMBED = ("chat", "api"), ("embed", "api")


def answer(key: tuple[str, str], at: int, seconds: float, tokens: int, end: bool = True) -> Sample:
    """Tokens at equal distances, the last after `seconds`; or an answer in one piece; or none."""
    each = int(seconds * SECOND / max(1, tokens))
    messages = tuple((at + each * (n + 1), 1) for n in range(tokens)) if end else ()
    first, last = (messages[0][0] if messages else None), at + int(seconds * SECOND)
    rest = ("ok", "", "length") if end else ("rejected", "queue is full", "")
    return Sample(f"{key[0]}-{at}", *key, at, at, first, last, messages, *rest, tokens, 7, 0, len(messages))  # type: ignore[arg-type]


def run(
    seed: int,
    slower: float = 1.0,
    lost: Callable[[int], bool] = lambda n: False,
    count: int = 300,
    key: tuple[str, str] = EMBED,
    queue: bool = True,
) -> Recording:
    """Requests alike in all runs, 300 in 60 s, through one server that takes `slower` times as long, with its noise.

    The server is busy a third of the time; three pauses of a neighbour, a second each, make it take twice as long.
    """
    load, noise = np.random.default_rng(7), np.random.default_rng(1000 + seed)
    ats = np.sort(load.uniform(0, 60, count))
    work = 20 / count * load.lognormal(-0.125, 0.5, count) * noise.lognormal(0, 0.1, count) * slower
    for pause in noise.uniform(0, 59, 3):
        work[(ats > pause) & (ats < pause + 1)] *= 2
    samples, free = [], 0.0
    for n, (at, takes) in enumerate(zip(ats, work, strict=True)):
        free = max(free, at) + takes
        tokens = 2 + n % 5 if key == CHAT else 0
        samples.append(answer(key, int(at * SECOND), free - at, tokens, not lost(n)))
    return Recording(60 * SECOND, 0, 1.0, CLIENT, {key: Sent(key == CHAT, TARGETS)}, samples)


def by_name(lines: Sequence[Line]) -> dict[str, Line]:
    return {line.metric: line for line in lines}


def test_noise_is_no_regression_in_49_of_50_pairs_and_a_slowdown_of_15_percent_is_found() -> None:
    first = run(0)
    changed = [{line.change for line in compare(first, run(seed), 0.05)} for seed in range(1, 201)]
    assert sum("worse" in found for found in changed) <= 4
    assert sum("better" in found for found in changed) <= 4
    slowed = [compare(run(seed), run(seed + 500, slower=1.15), 0.05) for seed in range(40)]
    assert sum(any(line.change == "worse" for line in lines) for lines in slowed) >= 36
    assert not any(line.change == "better" for lines in slowed for line in lines)


def test_every_metric_stands_there_with_both_values_and_its_direction() -> None:
    a, b = run(0, key=CHAT), run(0, key=CHAT, slower=2.0, lost=lambda n: n % 4 == 0)
    lines = by_name(compare(a, b, 0.05))
    latencies = [f"{metric} {at}" for metric in ("TTFT", "ITL", "E2E") for at in ("P50", "P95", "P99")]
    assert list(lines) == [*latencies, "goodput", "tokens/s", "errors"]
    ends = sorted(sample.e2e for sample in a.samples)
    assert lines["E2E P50"].a == ends[149] and lines["E2E P95"].a == ends[284]
    assert lines["E2E P95"].b == float("inf") and lines["E2E P95"].change == "worse"
    tokens = [sum(len(s.messages) for s in of.samples if s.end and s.end <= 60 * SECOND) for of in (a, b)]
    assert [lines["tokens/s"].a * 60, lines["tokens/s"].b * 60] == pytest.approx(tokens, abs=6)
    assert (lines["goodput"].a, lines["goodput"].b) == (5.0, 3.75)
    assert (lines["errors"].a, lines["errors"].b, lines["errors"].ratio) == (0.0, 0.25, float("inf"))
    assert {lines[name].change for name in ("E2E P50", "TTFT P50", "goodput", "tokens/s", "errors")} == {"worse"}
    back = by_name(compare(b, a, 0.05))
    assert {back[name].change for name in ("E2E P50", "goodput", "tokens/s", "errors")} == {"better"}
    told = as_json(compare(a, b, 0.05), 0.05)
    assert json.loads(json.dumps(told, allow_nan=False))["regressions"] >= 6


def test_a_run_beside_itself_is_the_same_and_a_threshold_hides_a_change_that_is_sure() -> None:
    a = run(0)
    assert all((line.ratio, line.low, line.high) == (1, 1, 1) for line in compare(a, a, 0.0) if line.low)
    slow = replace(a, samples=[replace(s, end=s.intended + int(s.e2e * 1.1)) for s in a.samples])
    assert by_name(compare(a, slow, 0.05))["E2E P50"].change == "worse"
    assert by_name(compare(a, slow, 0.12))["E2E P50"].change == "same"


def test_good_is_what_meets_the_targets_of_the_later_run() -> None:
    a = run(0)
    strict = replace(a, sent={EMBED: Sent(False, Targets(e2e="1ms"))})  # type: ignore[arg-type]
    assert by_name(compare(a, strict, 0.05))["goodput"].a == 0.0
    assert by_name(compare(strict, a, 0.05))["goodput"].a == 5.0


def test_few_requests_say_nothing_and_p99_needs_more_than_p50() -> None:
    lines = by_name(compare(run(0), run(1, slower=3), 0.05))
    assert lines["E2E P50"].change == "worse"
    assert (lines["E2E P99"].change, lines["E2E P99"].low) == ("unknown", None)  # 300 are fewer than 368
    few = compare(run(0, count=19), run(1, count=19, slower=3), 0.05)
    assert {line.change for line in few} == {"unknown"}
    assert conclusion(few) == "Nothing could be compared: too few requests; load longer."
    assert compare(replace(run(0), samples=[]), replace(run(1), samples=[]), 0.05) == []


def test_runs_of_different_loads_are_told_in_one_line() -> None:
    a = run(0)
    with pytest.raises(DifferentLoads, match=r"a\.jsonl loads embed api, and b\.jsonl does not"):
        check(Asked.of(a), Asked.of(run(0, key=CHAT)), ("a.jsonl", "b.jsonl"))
    both = replace(a, sent={**a.sent, CHAT: Sent(True, None)})
    with pytest.raises(DifferentLoads, match=r"b\.jsonl loads chat api, and a\.jsonl does not"):
        check(Asked.of(a), Asked.of(both), ("a.jsonl", "b.jsonl"))
    with pytest.raises(DifferentLoads, match="last 60 s and 61 s; load both with the same"):
        check(Asked.of(a), Asked.of(replace(a, duration=61 * SECOND)), ("a", "b"))
    with pytest.raises(DifferentLoads, match=r"not sent the same requests \(embed api: 300 and 299\)"):
        check(Asked.of(a), Asked.of(replace(a, samples=a.samples[1:])), ("a", "b"))
    planned = [Planned(s.id, s.model, s.tier, s.intended) for s in reversed(a.samples)]
    check(Asked.of(a), Asked.planned(planned, a.sent, a.duration), ("a", "b"))
    with pytest.raises(DifferentLoads, match="slow: the client itself lagged"):
        check_client(replace(a, client=replace(CLIENT, send_lag=300.0 * MS)), "slow")


def test_a_recording_survives_the_file(tmp_path: Path) -> None:
    for a in (run(0, key=CHAT, lost=lambda n: n == 3), replace(run(0), sent={EMBED: Sent(False, None)})):
        (tmp_path / "a.jsonl").write_text(recording.dumps(a))
        assert recording.read(tmp_path / "a.jsonl") == a


def edited(number: int, old: str, new: str) -> Callable[[str], str]:
    """A file with `old` in line `number` made `new`."""

    def edit(text: str) -> str:
        lines = text.split("\n")
        assert old in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(old, new, 1)
        return "\n".join(lines)

    return edit


def twice(text: str) -> str:
    """The second line of a request is the first once more."""
    lines = text.split("\n")
    return "\n".join([*lines[:2], lines[1], *lines[3:]])


HOSTILE: list[tuple[Callable[[str], str], str]] = [
    (lambda text: "", "line 1: Invalid JSON"),
    (lambda text: text[:-200], "line 21: Invalid JSON"),
    (lambda text: text[: text[:-1].rindex("\n")], "holds 19 samples, and line 1 says 20: it was cut off"),
    (lambda text: text.split("\n", 1)[1], "line 1: gapless: Field required"),
    (lambda text: "[]\n" + text, "line 1: Input should be an object"),
    (edited(1, "samples 1", "samples 9"), "line 1: gapless: Input should be 'samples 1'"),
    (edited(1, '"duration": 60000000000', '"duration": 0'), "line 1: duration: Input should be greater than 0"),
    (edited(1, '"rate_scale": 1.0', '"rate_scale": NaN'), "line 1: rate_scale: Input should be a finite number"),
    (edited(1, "5000000000ns", "5"), "line 1: sent.0.targets.e2e: "),
    (edited(2, '"end": ', '"end": NaN, "x": '), "line 2: "),
    (edited(3, '"intended": ', '"intended": 1e999, "x": '), "line 3: intended: "),
    (edited(3, '"sent": ', '"sent": "soon", "x": '), "line 3: sent: Input should be a valid integer"),
    (edited(3, '"end": ', '"end": 99999999999999999999999, "x": '), "line 3: end: "),
    (edited(4, '"end": ', '"end": null, "x": '), "line 4: the outcome is ok, and `end` or `first` is null"),
    (edited(4, '"ok"', '"fine"'), "line 4: outcome: Input should be 'ok', 'rejected' or 'failed'"),
    (edited(5, '"embed"', '"other"'), "line 5: other api is not among what line 1 says was sent"),
    (edited(6, '"asked": 0', '"asked": 4'), "line 6: asked is 4, and embed answers in one piece"),
    (edited(7, '"messages": []', '"messages": [[1, 0]]'), "line 7: messages.0.1: Input should be greater than 0"),
    (edited(9, '"first": null', '"first": 0'), "line 9: first: 0 is before intended, "),
    (twice, "line 3: id embed-"),
    (edited(1, '"sent": [', '"sent": [{"model": "embed", "tier": "api", "tokens": false, "targets": null}, '), "twice"),
    (edited(8, "{", "[" * 5000 + "{"), "line 8: Invalid JSON"),
]


@pytest.mark.parametrize(("hurt", "told"), HOSTILE)
def test_a_file_that_is_no_recording_is_told_in_one_line(tmp_path: Path, hurt: Callable[[str], str], told: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(hurt(recording.dumps(run(0, count=20))))
    with pytest.raises(RecordingError) as refused:
        recording.read(path)
    assert str(refused.value).startswith(f"{path}: ") and told in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"messages": ()}, "the outcome is ok, and `messages` is empty"),
        ({"end": 0}, "end: 0 is before messages, "),
        ({"messages": ((5 * SECOND, 1), (4 * SECOND, 1)), "first": 3 * SECOND}, "messages: 4000000000 is before mess"),
        ({"first": 0}, "first: 0 is before intended, 1000000000"),
    ],
)
def test_times_that_cannot_have_been_are_told_in_one_line(
    tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    one = replace(answer(CHAT, SECOND, 9, 2), **changed)  # type: ignore[arg-type]
    path = tmp_path / "a.jsonl"
    path.write_text(recording.dumps(Recording(60 * SECOND, 0, 1.0, CLIENT, {CHAT: Sent(True, None)}, [one])))
    with pytest.raises(RecordingError) as refused:
        recording.read(path)
    assert str(refused.value).startswith(f"{path}: line 2: {told}")


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="absent: No such file or directory; give what"):
        recording.read(tmp_path / "absent")


def gapless(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gapless", *arguments],
        cwd=folder,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_exits_by_what_got_worse(tmp_path: Path) -> None:
    for name, one in {"a": run(0), "noise": run(1), "slow": run(2, slower=2.0), "chat": run(0, key=CHAT)}.items():
        (tmp_path / name).write_text(recording.dumps(one))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    worse = gapless(tmp_path, "compare", "a", "slow", "--json", "out.json")
    assert (worse.returncode, worse.stderr) == (1, "")
    assert "WORSE" in worse.stdout and max(len(line) for line in worse.stdout.splitlines()) <= 80
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["regressions"] == sum(line["change"] == "worse" for line in told["metrics"]) > 0
    same = gapless(tmp_path, "compare", "a", "noise")
    assert (same.returncode, same.stderr) == (0, "") and "got worse" in same.stdout
    for other, said in (("chat", "loads embed api, and chat does not"), ("bytes", "is not text")):
        bad = gapless(tmp_path, "compare", "a", other)
        assert (bad.returncode, bad.stdout) == (2, "") and said in bad.stderr and bad.stderr.count("\n") == 1


SLA = """
gapless: 1
tiers: {api: {}}
models:
  chat:
    kind: llm
    source: wheel:any
    targets: {api: {e2e: 30s, at: p50}}
    traffic: {api: {rate: 60/s, prompt: {median: 20, p95: 40}, output: {median: 4, p95: 8}}}
"""


def test_a_baseline_is_written_by_the_first_run_and_later_ones_are_compared_with_it(tmp_path: Path) -> None:
    slow = False

    def reply(asked: AskedOfServer) -> Iterator[Reply]:
        time.sleep(0.5 if slow else 0.1)
        yield from at_once(asked)

    (tmp_path / "sla.yaml").write_text(SLA)
    with fake_triton(reply) as url:
        words = ("loadtest", "sla.yaml", "--url", url, "--duration", "1s", "--baseline", "base.jsonl")
        first = gapless(tmp_path, *words)
        written = (tmp_path / "base.jsonl").read_bytes()
        slow = True
        second = gapless(tmp_path, *words, "--json", "out.json")
        other = gapless(tmp_path, *words, "--seed", "1")
        shared = gapless(tmp_path, *words, "--samples", "base.jsonl")
        nowhere = gapless(tmp_path, *words[:-1], "no/where")
    assert (first.returncode, first.stderr) == (0, "")
    assert "base.jsonl did not exist: this run is written there" in first.stdout
    assert "95 % within" in first.stdout and "goodput " in first.stdout
    assert max(len(line) for line in first.stdout.splitlines()) <= 80
    assert (second.returncode, second.stderr) == (1, "")
    assert "The promise was kept." in second.stdout and "got worse" in second.stdout
    comparison = json.loads((tmp_path / "out.json").read_text())["comparison"]
    lines = {line["metric"]: line for line in comparison["metrics"]}
    assert lines["E2E P50"]["change"] == "worse" and 3 < lines["E2E P50"]["ratio"] < 8
    for refused, said in (
        (other, "base.jsonl and this run were not sent the same requests (chat api: "),
        (shared, "--samples: base.jsonl: is read, and would be overwritten; give a file"),
        (nowhere, "--baseline: no/where: No such file or directory"),
    ):
        assert (refused.returncode, refused.stdout) == (2, "") and said in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert (tmp_path / "base.jsonl").read_bytes() == written


def test_a_terminal_that_takes_nothing_costs_no_result(tmp_path: Path) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    words = ("loadtest", "sla.yaml", "--duration", "1s", "--baseline", "base", "--json", "json", "--url")
    with fake_triton(at_once) as url:
        env = os.environ | {"PYTHONIOENCODING": "ascii"}
        called = [sys.executable, "-m", "gapless", *words, url]
        plain = subprocess.run(called, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        (tmp_path / "base").unlink()
        (tmp_path / "json").unlink()
        with open("/dev/full", "w") as full:
            subprocess.run(called, cwd=tmp_path, stdout=full, stderr=subprocess.DEVNULL, timeout=60)
    assert (plain.returncode, plain.stderr) == (0, "") and "did not exist" in plain.stdout
    assert json.loads((tmp_path / "json").read_text()) and len(recording.read(tmp_path / "base").samples)
