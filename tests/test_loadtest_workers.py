"""A load shared by several processes, against the real Triton: the same requests as from one, all samples or none."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from fake_triton import fake_triton
from hypothesis import given
from hypothesis import strategies as st
from serving import serve, wait_for

from gapless import generator
from loadtest import link, recording, run
from loadtest.member import Member
from loadtest.run import Crew, Job, LoadtestError, WorkerLost
from loadtest.samples import Planned

SECOND = 10**9
TWO = Crew(2)
SLA = """
gapless: 1
tiers: {a: {}, b: {}}
models:
  unary:
    kind: onnx
    source: wheel:none
    targets: {a: {e2e: 30s, at: p50}, b: {e2e: 1us, at: p50}}
    traffic: {a: {rate: 20/s, length: {median: 8, p95: 16}}, b: {rate: 20/s, length: {median: 8, p95: 16}}}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with idle models."""
    folder = tmp_path_factory.mktemp("idle")
    generator.add_models(folder / "repository", 20)
    with serve(folder / "repository", folder, model="stream") as serving:
        yield f"127.0.0.1:{serving.facts['grpc_port']}"


def load(seconds: int) -> list[Planned]:
    bench = generator.Bench(rate=60, streams=4, pace=20, duration=seconds * SECOND, repeat=1, seed=0)
    planned = [*generator.texts(bench), *generator.streams(bench)]
    return sorted(planned, key=lambda request: (request.at, request.id))


def helpers() -> list[psutil.Process]:
    """Load generators that this process has started, and theirs."""
    return [one for one in psutil.Process().children(recursive=True) if "loadtest.remote" in " ".join(one.cmdline())]


@pytest.mark.parametrize("crew", [run.ALONE, TWO])
def test_what_is_planned_is_sent_once_and_brought_back_in_order(url: str, crew: Crew) -> None:
    planned = load(1)
    seen: list[int] = []
    taken, client = run.run(Job(url, planned, SECOND, 20 * SECOND, crew=crew), lambda now: seen.append(now.ended))
    assert [(one.id, one.intended, one.outcome, one.output_tokens) for one in taken] == [
        (one.id, one.at, "ok", one.max_tokens) for one in planned
    ]
    assert all(one.intended <= one.sent <= one.end for one in taken if one.end is not None)
    assert seen == sorted(seen) and 0 < seen[-1] <= len(planned)
    shares = [worker.requests for worker in client.workers]
    assert shares == ([-(-len(planned) // 2), len(planned) // 2] if crew.is_led else [])
    assert sum(worker.cpu for worker in client.workers) == pytest.approx(client.cpu if crew.is_led else 0, rel=0.3)
    assert all(worker.clock_error == 0 for worker in client.workers)  # of one machine
    assert helpers() == []


def test_users_of_a_closed_loop_are_shared(url: str) -> None:
    endless = [Planned(f"text-{n}", "unary", "bench", 0, "Hello.") for n in range(20_000)]
    taken, client = run.run(Job(url, endless, SECOND, SECOND, closed_users=3, crew=TWO))
    moments = sorted([(one.sent, 1) for one in taken] + [(one.end or 0, -1) for one in taken])
    open_now = [sum(step for _, step in moments[: n + 1]) for n in range(len(moments))]
    assert max(open_now) == 3
    assert len({one.id for one in taken}) == len(taken) == sum(worker.requests for worker in client.workers)


def test_a_run_that_lost_a_worker_is_lost_and_says_which(url: str) -> None:
    killed: list[psutil.Process] = []

    def kill(now: run.Progress) -> None:
        if now.ended > 5 and not killed:
            killed.append(helpers()[0])
            killed[0].kill()

    with pytest.raises(WorkerLost) as lost:
        run.run(Job(url, load(20), 20 * SECOND, SECOND, crew=TWO), kill)
    told = re.fullmatch(
        rf"worker [12] of 2 \(.*, process {killed[0].pid}\) was killed by SIGKILL [\d.]+ s after the run began: the "
        r"samples of its (\d+) requests are lost \(\d+ had ended\), and the run is not judged without them",
        str(lost.value),
    )
    assert told is not None and abs(int(told[1]) - len(load(20)) / 2) <= 1
    assert (lost.value.exit_status, helpers()) == (1, [])


def test_workers_without_a_server_are_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(LoadtestError, match=rf"^no server answers on {nobody} \(.*\); start `gapless serve`"):
            run.run(Job(nobody, load(1), SECOND, SECOND, crew=TWO))
    assert helpers() == []


def gapless(*words: str) -> list[str]:
    return [sys.executable, "-m", "gapless", *words]


@contextmanager
def started(folder: Path, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose output goes to `folder`/`name`; gone afterwards."""
    with (folder / name).open("wb") as out:
        process = subprocess.Popen(
            gapless(*words), cwd=folder, stdout=out, stderr=subprocess.STDOUT, preexec_fn=as_at_a_terminal
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def as_at_a_terminal() -> None:
    """A shell's background job ignores Ctrl-C, and so would all that this test run starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def free() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_workers_join_from_elsewhere_one_too_many_is_refused_and_ctrl_c_ends_all(
    url: str, tmp_path: Path, free: str
) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    lead = ("loadtest", "sla.yaml", "--url", url, "--duration", "90s", "--workers", "2", "--bind", free, "--ui")

    def said(name: str) -> str:
        return (tmp_path / name).read_text()

    with (
        started(tmp_path, "lead", *lead) as leading,
        started(tmp_path, "one", "loadworker", free) as one,
        started(tmp_path, "two", "loadworker", free) as two,
    ):
        wait_for(lambda: "sending" in said("one") and "sending" in said("two"))
        third = subprocess.run(gapless("loadworker", free), cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert third.returncode == 2
        assert third.stderr.startswith("gapless: the run has all its 2 workers")
        page = said("lead").split()[said("lead").split().index("ends:") + 1]

        def told_page() -> int:
            with urllib.request.urlopen(f"{page}stats/requests", timeout=10) as answer:
                return int(json.load(answer)["stats"][-1]["num_requests"])

        wait_for(told_page)
        leading.send_signal(signal.SIGINT)
        assert leading.wait(30) == 130
        assert (one.wait(30), two.wait(30)) == (1, 1)
        assert f"gapless: the master on {free} ended the run" in said("one")
        assert f"Waiting for 2 × gapless loadworker {free}" in said("lead") and "promises" not in said("lead")


def test_the_command_judges_several_as_one(url: str, tmp_path: Path, free: str) -> None:
    """Of two tiers one is promised what is kept, one what cannot be; the same from one process and from two."""
    (tmp_path / "sla.yaml").write_text(SLA)
    found = []
    for name, crew in (("one", ()), ("two", ("--workers", "2"))):
        written = ("--samples", f"{name}.jsonl", "--json", f"{name}.json")
        words = gapless("loadtest", "sla.yaml", "--url", url, "--duration", "1s", *crew, *written)
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (1, "")
        told = json.loads((tmp_path / f"{name}.json").read_text())
        raw = recording.read(tmp_path / f"{name}.jsonl")
        rulings = [(one["tier"], one["verdict"]) for one in told["models"]["unary"]["verdicts"]]
        found.append((rulings, [(one.id, one.tier, one.intended, one.outcome) for one in raw.samples]))
        assert [worker["requests"] for worker in told["client"].get("workers", [])] == [
            worker.requests for worker in raw.client.workers
        ]
        assert len(raw.client.workers) == (2 if crew else 0)
    assert found[0] == found[1]
    assert found[0][0] == [("a", "kept"), ("b", "missed")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--bind", "nowhere"), "--bind: 'nowhere' is not allowed; HOST:PORT"),
        (("--bind", "127.0.0.1:0"), "--bind: '127.0.0.1:0' is not allowed; HOST:PORT"),
        (("--bind", "192.0.2.1:5557"), "--bind: 192.0.2.1:5557 is not allowed (Cannot assign"),
        (("--workers", "3", "--users", "2"), "--workers: 3 are more than the 2 of --users"),
    ],
)
def test_what_cannot_be_shared_is_told_with_status_2(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    done = subprocess.run(gapless("loadtest", "sla.yaml", *words), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gapless: {told}") and done.stderr.count("\n") == 1


def test_a_worker_that_is_led_to_another_server_says_so_and_one_that_waits_says_that(tmp_path: Path, free: str) -> None:
    with fake_triton() as grpc, socket.create_server(("127.0.0.1", 0)) as silent:
        for there in (grpc, "{}:{}".format(*silent.getsockname())):
            done = subprocess.run(gapless("loadworker", there), capture_output=True, text=True, timeout=60)
            told = f"gapless: {there} is something else than a load test; give what --bind of one names\n"
            assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    with started(tmp_path, "worker", "loadworker", free) as worker:
        line = f"waiting for the load test at {free}, at most 5 minutes\n"
        wait_for(lambda: (tmp_path / "worker").read_text() == line)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(30) == 130
        assert (tmp_path / "worker").read_text().startswith(line)


def test_the_clock_of_a_worker_is_read_from_its_fastest_ping() -> None:
    """Its clock is 5,000 ahead; a ping takes 10 there and 30 back, a later one 4 and 2, a last one 100 and 100."""
    member = Member("node", "name", 1, [])
    for sent, there, back in ((100, 10, 30), (1000, 4, 2), (2000, 100, 100)):
        member.hear_pong(sent, sent + there + 5000, sent + there + back)
    offset, error = member.clock
    assert (member.pings, error) == (3, 4)
    assert abs(offset - 5000) <= error
    near = Member("node", "name", 1, [])
    near.hear_pong(100, 109, 120)  # in the middle would be 110: one and the same clock can show that
    assert near.clock == (0, 0)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=50)))
def test_lines_survive_being_cut_into_pieces(told: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "PIECE", 64)
        cut = list(link.pieces(told))
    assert [line.decode() for piece in cut for line in link.lines(piece)] == told
    assert all(len(piece) < 64 + 4 * 50 + 1 for piece in cut)


def test_the_generator_is_measured_and_says_whether_it_is_the_bottleneck(tmp_path: Path) -> None:
    words = ("--rate", "50", "--streams", "4", "--duration", "1s", "--repeat", "1", "--json", str(tmp_path / "o.json"))
    done = subprocess.run(
        gapless("bench", "generator", *words), cwd=tmp_path, capture_output=True, text=True, env=os.environ, timeout=90
    )
    told = json.loads((tmp_path / "o.json").read_text())
    [found] = told["rounds"]
    assert found["failed"] == 0
    assert found["texts_per_s"] > 25 and 60 <= found["tokens_per_s"] <= 80
    assert found["held"] == (max(found["send_lag_p99_s"], found["loop_lag_p99_s"]) < 0.01) == told["held"]
    assert done.returncode == (0 if told["held"] else 1)
    assert ("The load generator is the bottleneck" in done.stdout) != told["held"]
