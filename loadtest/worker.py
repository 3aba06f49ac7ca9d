"""The load generator, a process of its own: `python -m loadtest.worker` reads a job as JSON on stdin.

Locust's users are greenlets of the main thread and say when to send; the connection is on a thread of its own, which is
why nothing is patched here. Reports progress and its own lag as JSON lines on stdout and writes raw samples to a file.
Must not know targets or verdicts.
"""

import os

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from gevent.event import AsyncResult
from gevent.pool import Group
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest import probe, samples, web
from loadtest.connection import Connection
from loadtest.run import BURST_ENDED
from loadtest.samples import Planned, Sample
from loadtest.unary import Inputs

REPORT_PERIOD = 0.25  # s between progress lines


class Run:
    """One job under way: its clock, its connection, its samples."""

    def __init__(self, job: dict[str, Any], requests: list[Planned], inputs: dict[str, Inputs]) -> None:
        self.requests = requests
        self.duration, self.drain = int(job["duration"]), int(job["drain"])
        self.closed_users = int(job["closed_users"])
        self.samples: list[Sample] = []
        self._start, self.began = time.monotonic_ns(), time.time_ns()
        self.connection = Connection(job["url"], inputs, self.now)
        self.environment = Environment(user_classes=user_classes(self), catch_exceptions=False)
        self.runner = self.environment.create_local_runner()

    @property
    def unanswered(self) -> str:
        """What becomes of requests that are still in flight after the drain."""
        return f"no end of answer {self.drain / 1e9:g} s after the load ended" if self.drain else BURST_ENDED

    def now(self) -> int:
        return time.monotonic_ns() - self._start

    def begin(self) -> None:
        self._start, self.began = time.monotonic_ns(), time.time_ns()

    def send(self, request: Planned, intended: int) -> None:
        """Send one request and wait for its end; keep its sample and tell locust."""
        ended: AsyncResult[Sample] = AsyncResult()
        self.connection.send(request, intended, ended.set)
        sample = ended.get()
        self.samples.append(sample)
        self.environment.events.request.fire(
            request_type="gRPC",
            name=f"{request.model}/{request.tier}",
            response_time=((sample.end or 0) - intended) / 1e6,
            response_length=sample.output_tokens,
            exception=RuntimeError(sample.error) if sample.outcome != "ok" else None,
            context={},
        )


def user_classes(run: Run) -> list[type[User]]:
    """One locust user class per model and tier (open loop), or one for the whole mix (closed loop)."""
    if run.closed_users:
        return [closed_user(run)]
    return [open_user(run, *sender) for sender in dict.fromkeys((r.model, r.tier) for r in run.requests)]


def open_user(run: Run, model: str, tier: str) -> type[User]:
    """The dispatcher of a model's tier: sends each request at its time, whatever became of those before it."""

    class TierUser(User):
        fixed_count = 1

        @task
        def walk(self) -> None:
            in_flight = Group()
            for request in run.requests:
                if (request.model, request.tier) == (model, tier):
                    gevent.sleep(max(0, (request.at - run.now()) / 1e9))
                    in_flight.spawn(run.send, request, request.at)
            while not in_flight.join(timeout=max(0.1, (run.duration + run.drain - run.now()) / 1e9)):
                run.connection.abandon(run.unanswered)
            raise StopUser

    TierUser.__name__ = f"{model}/{tier}"
    return TierUser


def closed_user(run: Run) -> type[User]:
    """Users that each send the next request of the mix as soon as their last one ended, until time is up."""
    remaining = iter(run.requests)

    class MixUser(User):
        fixed_count = run.closed_users

        @task
        def send_next(self) -> None:
            request = next(remaining, None)
            if request is None or run.now() >= run.duration:
                raise StopUser
            run.send(request, run.now())

    return MixUser


def watch_progress(run: Run) -> None:
    while True:
        gevent.sleep(REPORT_PERIOD)
        failed = sum(sample.outcome != "ok" for sample in run.samples)
        say({"now": run.now(), "ended": len(run.samples), "in_flight": run.connection.in_flight, "failed": failed})


def say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


def end_closed(run: Run) -> None:
    gevent.sleep((run.duration + run.drain) / 1e9)
    while True:
        run.connection.abandon(run.unanswered)
        gevent.sleep(0.05)


def execute(run: Run) -> dict[str, object]:
    """Run the job to its end; the worker's last message."""
    gc.collect()
    gc.freeze()  # the plan is large and stays: no collection should walk it while times are taken
    before = resource.getrusage(resource.RUSAGE_SELF)
    run.begin()
    run.connection.watch_lag()
    beside = [gevent.spawn(watch_progress, run)]
    if run.closed_users:
        beside.append(gevent.spawn(end_closed, run))
    run.runner.start(users := sum(one.fixed_count for one in run.environment.user_classes), spawn_rate=max(100, users))
    gevent.joinall([run.runner.spawning_greenlet])
    run.runner.user_greenlets.join()
    wall = run.now()
    gevent.killall(beside)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"began": run.began, "wall": wall, "cpu": int(cpu * 1e9), "lags": run.connection.lags}


def main() -> int:
    job = json.load(sys.stdin)
    requests = [Planned(**raw) for raw in job["requests"]]
    try:
        inputs = probe.check(job["url"], requests)
    except probe.Unusable as error:
        print(error, file=sys.stderr)
        return probe.Unusable.exit_status
    run = Run(job, requests, inputs)
    page = web.Page(run.environment) if job["ui"] else None
    if page is not None:
        say({"ui": page.url})
    last = execute(run)
    if page is not None:
        page.close()
    if not run.closed_users and len(run.samples) != len(run.requests):
        raise RuntimeError(f"{len(run.requests)} requests were planned and {len(run.samples)} came to an end")
    samples.write(Path(job["samples"]), sorted(run.samples, key=lambda sample: (sample.intended, sample.id)))
    say(last)
    run.connection.close()
    run.runner.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
