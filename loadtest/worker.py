"""The load generator as one process of its own: `python -m loadtest.worker` reads a job as JSON on stdin.

Reports progress and its own lag as JSON lines on stdout and writes raw samples to a file. Must not know targets or
verdicts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gevent
from locust.env import Environment
from locust.runners import LocalRunner

from loadtest import probe, samples, web
from loadtest.load import Run, execute, settle
from loadtest.samples import Planned

LEAD = 100_000_000  # ns from when users are started to time 0


def say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


def start(run: Run, runner: LocalRunner) -> None:
    """All users of the job."""
    runner.start(users := sum(one.fixed_count for one in run.environment.user_classes), spawn_rate=max(100, users))
    gevent.joinall([runner.spawning_greenlet])


def main() -> int:
    job = json.load(sys.stdin)
    requests = [Planned(**raw) for raw in job["requests"]]
    try:
        inputs = probe.check(job["url"], requests)
    except probe.Unusable as error:
        print(error, file=sys.stderr)
        return probe.Unusable.exit_status
    environment = Environment(catch_exceptions=False)
    run, runner = Run(job, requests, inputs, environment), environment.create_local_runner()
    page = web.Page(environment) if job["ui"] else None
    if page is not None:
        say({"tell": page.told})
    settle()
    last = execute(run, runner, time.monotonic_ns() + LEAD, lambda: start(run, runner), say)
    if page is not None:
        page.close()
    run.check_whole()
    samples.write(Path(job["samples"]), run.samples)
    say(last)
    run.connection.close()
    runner.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
