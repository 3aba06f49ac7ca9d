"""One job of the load generator under way: locust's users say what is sent when, the connection sends and receives.

Users are greenlets of the main thread; the connection is on a thread of its own, which is why nothing is patched here.
Must not know who gave the job, targets or verdicts.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import AsyncResult
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import Runner

from loadtest.connection import Connection
from loadtest.run import BURST_ENDED
from loadtest.samples import Planned, Sample
from loadtest.unary import Inputs

REPORT_PERIOD = 0.25  # s between reports of progress
# A request is handed to the connection that long, in ns, before it is due. The connection's own loop keeps the time: so
# users wake once for all requests of some 50 ms, and what sends and receives is not kept from it by what plans.
AHEAD = 100_000_000

Report = Callable[[dict[str, object]], None]


class Run:
    """One job under way: its clock, its connection, its samples."""

    def __init__(
        self, job: dict[str, Any], requests: list[Planned], inputs: dict[str, Inputs], environment: Environment
    ) -> None:
        self.requests = requests
        self.duration, self.drain = int(job["duration"]), int(job["drain"])
        self.closed_users = int(job["closed_users"])
        self.samples: list[Sample] = []
        self.began = time.time_ns()
        self._start = time.monotonic_ns()
        self._shown = bool(job["ui"])
        self._seen = self._failed = 0  # samples that progress has been told of
        self.connection = Connection(job["url"], inputs, self.now)
        self.environment = environment
        environment.user_classes = user_classes(self)

    @property
    def unanswered(self) -> str:
        """What becomes of requests that are still in flight after the drain."""
        return f"no end of answer {self.drain / 1e9:g} s after the load ended" if self.drain else BURST_ENDED

    def now(self) -> int:
        return time.monotonic_ns() - self._start

    def begin(self, at: int) -> None:
        """Time 0 is `at` on the monotonic clock."""
        self._start, self.began = at, time.time_ns() + at - time.monotonic_ns()

    def send(self, request: Planned, intended: int) -> None:
        """Send one request now and wait for its end."""
        ended: AsyncResult[None] = AsyncResult()

        def keep(sample: Sample) -> None:
            self.samples.append(sample)
            ended.set()

        self.connection.send(request, intended, keep)
        ended.get()

    def check_whole(self) -> None:
        """Raise RuntimeError unless everything that was planned came to an end."""
        if not self.closed_users and len(self.samples) != len(self.requests):
            raise RuntimeError(f"{len(self.requests)} requests were planned and {len(self.samples)} came to an end")

    def progress(self) -> dict[str, object]:
        """How far it is. Where its page is shown, locust hears of what ended since this was last asked."""
        fresh = self.samples[self._seen :]
        self._seen += len(fresh)
        self._failed += sum(sample.outcome != "ok" for sample in fresh)
        for sample in fresh if self._shown else ():
            self._tell_locust(sample)
        return {"now": self.now(), "ended": self._seen, "in_flight": self.connection.in_flight, "failed": self._failed}

    def _tell_locust(self, sample: Sample) -> None:
        self.environment.events.request.fire(
            request_type="gRPC",
            name=f"{sample.model}/{sample.tier}",
            response_time=((sample.end or 0) - sample.intended) / 1e6,
            response_length=sample.output_tokens,
            exception=RuntimeError(sample.error) if sample.outcome != "ok" else None,
            context={},
        )


def user_classes(run: Run) -> list[type[User]]:
    """One locust user class per model and tier (open loop), or one for the whole mix (closed loop)."""
    if run.closed_users:
        return [closed_user(run)]
    senders: dict[tuple[str, str], list[Planned]] = {}
    for request in run.requests:
        senders.setdefault((request.model, request.tier), []).append(request)
    return [open_user(run, f"{model}/{tier}", requests) for (model, tier), requests in senders.items()]


def open_user(run: Run, name: str, requests: list[Planned]) -> type[User]:
    """The dispatcher of a model's tier: sends each request at its time, whatever became of those before it."""

    class TierUser(User):
        fixed_count = 1

        @task
        def walk(self) -> None:
            left = len(requests)
            ended: AsyncResult[None] = AsyncResult()

            def keep(sample: Sample) -> None:
                nonlocal left
                run.samples.append(sample)
                left -= 1
                if not left:
                    ended.set()

            for request in requests:
                if (early := request.at - run.now()) > AHEAD:
                    gevent.sleep((early - AHEAD / 2) / 1e9)
                run.connection.send(request, request.at, keep)
            while not ended.wait(timeout=max(0.1, (run.duration + run.drain - run.now()) / 1e9)) and left:
                run.connection.abandon(run.unanswered)
            raise StopUser

    TierUser.__name__ = name
    return TierUser


def closed_user(run: Run) -> type[User]:
    """Users that each send the next request of the mix as soon as their last one ended, until time is up."""
    remaining = iter(run.requests)

    class MixUser(User):
        fixed_count = run.closed_users

        def on_start(self) -> None:
            gevent.sleep(max(0, -run.now() / 1e9))

        @task
        def send_next(self) -> None:
            request = next(remaining, None)
            if request is None or run.now() >= run.duration:
                raise StopUser
            run.send(request, run.now())

    return MixUser


def watch_progress(run: Run, report: Report) -> None:
    while True:
        gevent.sleep(REPORT_PERIOD)
        report(run.progress())


def end_closed(run: Run) -> None:
    gevent.sleep((run.duration + run.drain) / 1e9)
    while True:
        run.connection.abandon(run.unanswered)
        gevent.sleep(0.05)


def settle() -> None:
    """Collect what is left over, and keep what stays: no collection shall walk the plan while times are taken.

    Of a large plan it takes longer than users are given to start. So it is done before time 0 is fixed.
    """
    gc.collect()
    gc.freeze()


def execute(run: Run, runner: Runner, at: int, start: Callable[[], None], report: Report) -> dict[str, object]:
    """Run the job to its end, its time 0 being `at` on the monotonic clock; what is to be told of it.

    `start` starts the users, who wait for their times. What is in memory is settled by then.
    """
    run.begin(at)
    start()
    gevent.sleep(max(0, -run.now() / 1e9))
    before = resource.getrusage(resource.RUSAGE_SELF)
    run.connection.watch_lag()
    beside = [gevent.spawn(watch_progress, run, report)]
    if run.closed_users:
        beside.append(gevent.spawn(end_closed, run))
    runner.user_greenlets.join()
    wall = run.now()
    gevent.killall(beside)
    after = resource.getrusage(resource.RUSAGE_SELF)
    report(run.progress())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"began": run.began, "wall": wall, "cpu": int(cpu * 1e9), "lags": run.connection.lags}
