"""A worker of a distributed run: takes its share of the requests from the master, sends them, hands back the samples.

`python -m loadtest.remote HOST PORT` is one that the master started, and that ends with it. Must not know targets,
verdicts or the other workers.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import STATE_CLEANUP, STATE_STOPPED, WorkerRunner

from config_gen.percentiles import percentile
from loadtest import link, probe, samples
from loadtest.load import Run, execute, settle
from loadtest.run import P99, LoadtestError
from loadtest.samples import Planned

PATIENCE = 300.0  # s for a master to be there, as of locust's runner
GREETING = 5.0  # s until what listens has shown what it is; ZeroMQ sends its signature at once, whoever comes
SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"  # of ZMTP 3, with which both sides begin
ENDED = (STATE_CLEANUP, STATE_STOPPED)  # of locust's runner once it was told to quit
Tell = Callable[[str], None]


class MasterGone(RuntimeError):
    """The run was ended by its master, or the master is gone; one line."""

    exit_status = 1


def work(host: str, port: int, tell: Tell = lambda _: None, tell_waiting: Tell = lambda _: None) -> None:
    """Join the run that is led there, and do a share of it; waits some minutes for a master, and tells that once.

    Raises LoadtestError when the master has no work or the server cannot be used, MasterGone.
    """
    _find(host, port, tell_waiting)
    environment = Environment(catch_exceptions=False)
    try:
        runner = environment.create_worker_runner(host, port)
    except ConnectionError:
        raise LoadtestError(f"no load test is led on {host}:{port}; start one with --bind there") from None
    end = _End(runner)
    try:
        _work(environment, end, tell)
    finally:
        environment.events.quitting.fire(environment=environment)  # tells the master, if it does not know
        runner.client.close(linger=1000)


def _find(host: str, port: int, tell_waiting: Tell) -> None:
    """Until something speaks ZeroMQ there. Raises LoadtestError when nothing comes, or what is there does not."""
    until, told = time.monotonic() + PATIENCE, False
    while not (answer := _greeting(host, port)):
        if time.monotonic() > until:
            raise LoadtestError(f"no load test is led on {host}:{port}; start one with --bind there")
        if not told:
            tell_waiting(f"waiting for the load test at {host}:{port}, at most {PATIENCE / 60:.0f} minutes")
            told = True
        time.sleep(0.5)
    if answer[:1] != SIGNATURE[:1]:
        raise LoadtestError(f"{host}:{port} is something else than a load test; give what --bind of one names")


def _greeting(host: str, port: int) -> bytes:
    """What it says first, "?" where it says nothing; nothing where none listens or it hangs up, as forwarders do."""
    try:
        with socket.create_connection((host, port), timeout=GREETING) as there:
            there.sendall(SIGNATURE)
            try:
                return there.recv(len(SIGNATURE))
            except TimeoutError:
                return b"?"
    except OSError:
        return b""


class _End:
    """The worker's end of the link."""

    def __init__(self, runner: WorkerRunner) -> None:
        self.runner = runner
        self._inbox = link.Inbox(runner, link.TO_WORKER)

    def say(self, kind: str, **data: object) -> None:
        self.runner.send_message(kind, data)

    def wait_for(self, kind: str) -> dict[str, Any]:
        """What the master says; pings are answered meanwhile. Raises LoadtestError where it refuses, MasterGone."""
        while True:
            self.check_led()
            message = self._inbox.take(0.25)
            if message is None:
                continue
            data: dict[str, Any] = message.data
            if message.type == "ping":
                self.say("pong", sent=data["sent"], here=time.monotonic_ns())
            elif message.type == "refused":
                raise LoadtestError(data["why"])
            elif message.type == kind:
                return data

    def wait_for_the_end(self) -> None:
        """Until the master has all it wanted."""
        while self.runner.state not in ENDED:
            gevent.sleep(0.05)

    def check_led(self) -> None:
        """Raise MasterGone when locust's runner was told to quit, or heard nothing from the master for too long."""
        if self.runner.state in ENDED:
            raise MasterGone(f"the master on {self.runner.master_host}:{self.runner.master_port} ended the run")


def _work(environment: Environment, end: _End, tell: Tell) -> None:
    end.say("hello", host=socket.gethostname(), pid=os.getpid())
    tell("joined; the run begins when all workers are there")
    job = end.wait_for("job")
    requests = _requests(end, job["count"])
    try:
        # On a thread: it waits for the server, and heartbeats must not wait with it.
        inputs = gevent.get_hub().threadpool.apply(probe.check, (job["url"], requests))
    except probe.Unusable as error:
        end.say("failed", line=str(error))
        gevent.sleep(0.1)
        raise LoadtestError(str(error)) from None
    run = Run(job, requests, inputs, environment)
    settle()
    end.say("ready")
    at = end.wait_for("begin")["at"]
    tell(f"sending {len(requests)} requests to {job['url']}")
    users = {one.__name__: one.fixed_count for one in environment.user_classes}
    last = execute(
        run, end.runner, at, lambda: end.runner.start_worker(users), lambda told: end.say("progress", **told)
    )
    end.check_led()
    run.check_whole()
    _hand_over(end, run, last)
    end.wait_for_the_end()
    run.connection.close()
    tell(f"handed over {len(run.samples)} samples")


def _requests(end: _End, count: int) -> list[Planned]:
    found: list[Planned] = []
    while len(found) < count:
        end.say("fetch")
        found += [Planned(**json.loads(line)) for line in link.lines(end.wait_for("piece")["lines"])]
    return found


def _hand_over(end: _End, run: Run, last: dict[str, object]) -> None:
    """First how it went, then the samples, piece by piece as the master asks for them."""
    lags = sorted(sample.sent - sample.intended for sample in run.samples)
    end.say("ended", **last, count=len(run.samples), send_lag=percentile(lags, P99) if lags else 0)
    for piece in link.pieces(map(samples.line, run.samples)):
        end.wait_for("fetch")
        end.say("piece", lines=piece)


def _end_with_the_master() -> None:
    """A process that the master started holds the reading end of a pipe whose other end closes when the master ends."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main() -> int:
    threading.Thread(target=_end_with_the_master, daemon=True).start()
    try:
        work(sys.argv[1], int(sys.argv[2]))
    except (LoadtestError, MasterGone) as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
