"""What the load generator does around a load: before time 0, when it dies early, when there is nothing to send."""

from __future__ import annotations

import gc
import io
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flask
import pytest
from locust.env import Environment

from gapless import generator
from gapless.cli import main
from loadtest import load, probe, remote, run, web, worker
from loadtest.samples import Planned

SECOND = 10**9
REQUESTS = [Planned("a-0", "chat", "a", 0, "Hello.", max_tokens=3)]


class Seen(Exception):
    """All that a test wants to know."""


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is frozen before and after; no server is needed."""
    monkeypatch.setattr(probe, "check", lambda *_: {})
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_the_plan_is_collected_before_time_0_is_fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    frozen: list[int] = []

    def clock() -> int:
        frozen.append(gc.get_freeze_count())
        return time.monotonic_ns()

    def executed(one: load.Run, *_: object) -> dict[str, object]:
        one.connection.close()
        raise Seen

    job = run.Job("nowhere:1", REQUESTS, SECOND, SECOND)
    told = json.dumps(asdict(job) | {"samples": str(tmp_path / "samples")})
    monkeypatch.setattr(sys, "stdin", io.StringIO(told))
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic_ns=clock))
    monkeypatch.setattr(worker, "execute", executed)
    with pytest.raises(Seen):
        worker.main()
    assert len(frozen) == 1 and frozen[0] > 0


@pytest.mark.usefixtures("thawed")
def test_a_worker_of_several_is_ready_when_its_plan_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: dict[str, int] = {}
    runs: list[load.Run] = []

    class End:
        def say(self, kind: str, **_: object) -> None:
            frozen[kind] = gc.get_freeze_count()
            if kind == "ready":
                raise Seen

        def wait_for(self, kind: str) -> dict[str, Any]:
            rest = {"closed_users": 0, "ui": False, "count": 1}
            job = {"url": "nowhere:1", "duration": SECOND, "drain": SECOND, **rest}
            return job if kind == "job" else {"lines": json.dumps(asdict(REQUESTS[0])).encode() + b"\n"}

    def made(*arguments: Any) -> load.Run:
        runs.append(load.Run(*arguments))
        return runs[0]

    monkeypatch.setattr(remote, "Run", made)
    with pytest.raises(Seen):
        remote._work(Environment(), End(), lambda _: None)  # type: ignore[arg-type]
    runs[0].connection.close()
    assert frozen["hello"] == 0 and frozen["ready"] > 0


def test_what_a_load_generator_says_that_dies_before_it_has_read_its_job_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is larger than any pipe, so writing it ends when the child does."""
    child = tmp_path / "child"
    child.write_text("#!/bin/sh\necho 'no room for it' >&2\nexit 2\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    large = [Planned("a-0", "chat", "a", 0, "x" * 4_000_000, max_tokens=3)]
    with pytest.raises(run.LoadtestError, match=r"^no room for it$"):
        run.run(run.Job("nowhere:1", large, SECOND, SECOND))


@pytest.mark.parametrize("path", ["/stop", "/stats/reset"])
def test_a_page_that_would_stop_a_run_when_it_is_looked_at_is_refused(path: str) -> None:
    """As locust's were before they took POST alone."""
    app, looked = flask.Flask("old"), []
    for one in (path, "/stats/requests"):
        app.add_url_rule(one, one, lambda one=one: looked.append(one) or "done")  # type: ignore[misc]
    app.before_request(web._refuse_changes)
    client = app.test_client()
    assert client.get(path).status_code == 405
    assert client.get("/stats/requests").status_code == 200
    assert client.post("/stats/requests").status_code == 405
    assert looked == ["/stats/requests"]


@pytest.mark.parametrize("words", [("--rate", "0"), ("--rate", "0.001", "--duration", "1s", "--seed", "1")])
def test_nothing_to_send_is_told_before_a_server_is_started(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generator, "server", lambda *_: pytest.fail("a server is started"))
    monkeypatch.setattr(sys, "argv", ["gapless", "bench", "generator", "--streams", "0", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" and "nothing to send in this --duration; give a larger --rate, or --streams" in said.err
    assert said.err.count("\n") == 1
