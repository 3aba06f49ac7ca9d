"""The master of a distributed run: `python -m loadtest.master` reads a job as JSON on stdin and leads its workers.

It splits the requests, agrees on time 0 with every worker, and brings back all samples or none: where a worker is lost,
the run is. Says what loadtest.worker says. Must not know how requests are sent, targets or verdicts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from locust.env import Environment
from locust.rpc import Message
from locust.runners import STATE_MISSING, STATE_RUNNING

from loadtest import link, web
from loadtest.member import Member
from loadtest.run import GOODBYE, LOST, LoadtestError, WorkerLost
from loadtest.samples import Planned
from loadtest.worker import say

LOOPBACK = "127.0.0.1"
JOIN = 300.0  # s in which all workers must be there
PINGS = 10
SOON = 500_000_000  # ns from when the last clock is known to time 0
PERIOD = 0.25  # s between reports of progress


class Master:
    """A job, and the workers that do it."""

    def __init__(self, job: dict[str, Any], environment: Environment, host: str, port: int) -> None:
        self._job = job
        self._requests = [Planned(**raw) for raw in job["requests"]]
        self._count: int = job["crew"]["workers"]
        self._runner = environment.create_master_runner(host, port)
        self._inbox = link.Inbox(self._runner, link.TO_MASTER)
        self._members: dict[str, Member] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._start: int | None = None  # time 0 on our monotonic clock
        self._told = 0.0  # when progress was last told

    def start_children(self) -> None:
        """All workers as processes of this machine; their stdin closes when this one ends, and then they end."""
        command = [sys.executable, "-m", "loadtest.remote", LOOPBACK, str(self._runner.server.port)]
        for _ in range(self._count):
            self._children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))

    def lead(self, file: BinaryIO) -> dict[str, object]:
        """The whole run; all samples are in the file then, in no order. The last message.

        Raises LoadtestError when the run cannot be made, WorkerLost.
        """
        until = time.monotonic() + JOIN
        self._until(lambda: len(self._members) == self._count, until)
        self._until(lambda: all(one.ready for one in self._all))
        for member in self._all:
            for number in range(PINGS):
                self._send(member, "ping", sent=time.monotonic_ns())
                self._until(lambda one=member, seen=number: one.pings > seen)  # type: ignore[misc]
        began = self._begin()
        self._until(lambda: all(one.result for one in self._all))
        for member in self._all:
            while not member.whole:
                had = member.samples
                self._send(member, "fetch")
                self._until(lambda one=member, had=had: one.samples > had, file=file)  # type: ignore[misc]
        return self._last(began)

    def close(self) -> None:
        """Send all workers home."""
        self._runner.quit()
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()  # one that has not joined yet hears of the end by this alone
            with suppress(subprocess.TimeoutExpired):
                child.wait(GOODBYE)
            child.kill()
            child.wait()

    @property
    def _all(self) -> list[Member]:
        return list(self._members.values())

    def _begin(self) -> int:
        """Tell every worker when time 0 is; that moment in ns since the epoch."""
        self._start = time.monotonic_ns() + SOON
        for member in self._all:
            self._send(member, "begin", at=self._start + member.clock[0])
        self._runner.update_state(STATE_RUNNING)  # what locust's page shows
        return time.time_ns() + self._start - time.monotonic_ns()

    def _last(self, began: int) -> dict[str, object]:
        results = [one.result for one in self._all]
        count = sum(one.samples for one in self._all)
        if not self._job["closed_users"] and count != len(self._requests):
            raise RuntimeError(f"{len(self._requests)} requests were planned, and {count} samples came back")
        return {
            "began": began,
            "wall": max(one["wall"] for one in results),
            "cpu": sum(one["cpu"] for one in results),
            "lags": [lag for one in results for lag in one["lags"]],
            "workers": [vars(one.as_worker()) for one in self._all],
        }

    def _until(self, done: Callable[[], bool], limit: float = float("inf"), file: BinaryIO | None = None) -> None:
        """Take messages until `done`. Raises LoadtestError at the limit, a moment on the monotonic clock."""
        while not done():
            message = self._inbox.take(PERIOD / 5)
            if message is not None:
                self._take(message, file)
            elif time.monotonic() > limit:
                raise LoadtestError(
                    f"{len(self._members)} of {self._count} workers joined within {JOIN:g} s; run `gapless loadworker "
                    f"{self._job['crew']['bind']}` on each machine"
                )
            else:
                self._check()
            self._tell_progress()

    def _take(self, message: Message, file: BinaryIO | None) -> None:
        data: dict[str, Any] = message.data or {}
        if message.type == "hello":
            self._welcome(message.node_id, **data)
            return
        member = self._members.get(message.node_id)
        if member is None:  # one that was refused
            return
        match message.type:
            case "fetch":
                self._send(member, "piece", lines=next(member.pieces))
            case "failed":
                who = f"worker {member.name}: " if self._job["crew"]["bind"] else ""
                raise LoadtestError(who + data["line"])
            case "ready":
                member.ready = True
            case "pong":
                member.hear_pong(data["sent"], data["here"], time.monotonic_ns())
            case "progress":
                member.seen = data
            case "ended":
                member.result = data
            case "piece" if file is not None:
                file.write(data["lines"])
                member.samples += len(link.lines(data["lines"]))

    def _welcome(self, node: str, host: str, pid: int) -> None:
        number = len(self._members)
        if number == self._count:
            why = f"the run has all its {number} workers; start it with more --workers, or wait for the next"
            self._runner.send_message("refused", {"why": why}, node)
            return
        users = self._job["closed_users"]
        share = self._requests[number :: self._count]
        job = {key: self._job[key] for key in ("url", "duration", "drain", "ui")} | {
            "closed_users": users // self._count + (number < users % self._count),
            "count": len(share),
        }
        member = Member(node, f"{number + 1} of {self._count} ({host}, process {pid})", pid, share)
        self._members[node] = member
        self._send(member, "job", **job)

    def _send(self, member: Member, kind: str, **data: object) -> None:
        self._runner.send_message(kind, data, member.node)

    def _check(self) -> None:
        """Raise WorkerLost when a worker is gone, RuntimeError where that is a defect; its trace is on stderr."""
        by_pid = {one.pid: one for one in self._all}
        for child in self._children:
            if (status := child.poll()) is not None:
                if status > 0:
                    raise RuntimeError(f"worker process {child.pid} ended with status {status}")
                how = f"was killed by {signal.Signals(-status).name}" if status else "left"
                raise self._lost(by_pid.get(child.pid), f"process {child.pid}", how)
        for member in self._all:
            client = self._runner.clients.get(member.node)
            if client is None:
                raise self._lost(member, member.name, "left")
            if client.state == STATE_MISSING:
                raise self._lost(member, member.name, f"was not heard of for {link.SILENT} s")

    def _lost(self, member: Member | None, name: str, how: str) -> WorkerLost:
        name = member.name if member else name
        if self._start is None or member is None:
            return WorkerLost(f"worker {name} {how} before the run began; nothing was sent")
        at = (time.monotonic_ns() - self._start) / 1e9
        return WorkerLost(
            f"worker {name} {how} {at:.1f} s after the run began: the samples of its {len(member.requests)} requests "
            f"are lost ({member.seen['ended']} had ended), and the run is not judged without them"
        )

    def _tell_progress(self) -> None:
        if self._start is None or time.monotonic() < self._told + PERIOD:
            return
        self._told = time.monotonic()
        sums = {key: sum(one.seen[key] for one in self._all) for key in ("ended", "in_flight", "failed")}
        say({"now": max(0, time.monotonic_ns() - self._start), **sums})


def run(job: dict[str, Any]) -> None:
    """Say all there is to say of a job; its workers are gone afterwards. Raises LoadtestError, WorkerLost."""
    host, _, port = job["crew"]["bind"].rpartition(":")
    environment = Environment()
    master = Master(job, environment, host or LOOPBACK, int(port or 0))
    page = web.Page(environment) if job["ui"] else None
    try:
        if page is not None:
            say({"tell": page.told})
        if host:
            say({"tell": f"Waiting for {job['crew']['workers']} × gapless loadworker {host}:{port}"})
        else:
            master.start_children()
        with Path(job["samples"]).open("wb") as file:
            last = master.lead(file)
    finally:
        if page is not None:
            page.close()
        master.close()
    say(last)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal: whoever started this answers it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run(json.load(sys.stdin))
    except (LoadtestError, WorkerLost) as error:
        print(error, file=sys.stderr)
        return LOST if isinstance(error, WorkerLost) else LoadtestError.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
