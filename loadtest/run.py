"""Runs a job in the load generator's own process and brings back its samples. Must not know targets or how to print."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from config_gen.percentiles import percentile
from loadtest.samples import Planned, Sample, read

P99 = Fraction(99, 100)
NEEDED = ("locust", "grpc")  # what only the load generator's process imports
LOST = 3  # exit status of a master that lost a worker
GOODBYE = 5.0  # s
BURST_ENDED = "the burst ended"  # the error of requests that a closed burst cut off


class LoadtestError(ValueError):
    """The run cannot be made as asked; one line."""

    exit_status = 2


class WorkerLost(RuntimeError):
    """A worker of several went away, and with it its samples; one line: which, when, how many."""

    exit_status = 1


@dataclass(frozen=True)
class Crew:
    """Processes that share a load. Of one without `bind`, the process sends by itself.

    They are started here, unless there is a `bind`, HOST:PORT: there the master waits for workers of other machines.
    """

    workers: int = 1
    bind: str = ""

    @property
    def is_led(self) -> bool:
        """Whether a master leads workers."""
        return self.workers > 1 or bool(self.bind)


ALONE = Crew()


@dataclass(frozen=True)
class Job:
    """Requests to the models of one server.

    `duration` and `drain` (how long answers may take once no more is sent) in ns.

    `closed_users` = 0 sends every request at its time; more make a closed loop: so many users, each sending the next
    request as soon as its last one ended, until `duration` is over. Without `drain` it is a burst, and what is in
    flight then is cut off. `ui` opens locust's own web page while the job runs.
    """

    url: str
    requests: Sequence[Planned]
    duration: int
    drain: int
    closed_users: int = 0
    ui: bool = False
    crew: Crew = ALONE


@dataclass(frozen=True)
class Worker:
    """How one of several workers did, as of Client. `clock_error`: ns within which its time 0 is that of the master."""

    name: str
    requests: int
    send_lag: float
    loop_lag: float
    cpu: float
    clock_error: float


@dataclass(frozen=True)
class Client:
    """How the load generator itself did: P99 of its lags in ns, and the cores it used, of all its `workers` together.

    `began` is the run's time 0 by its machine's clock, in ns since the epoch: what was seen elsewhere goes by that.
    """

    send_lag: float  # actual minus intended send time
    loop_lag: float  # how late its event loop wakes a sleeper
    cpu: float
    began: int = 0
    workers: tuple[Worker, ...] = ()  # of a crew


@dataclass(frozen=True)
class Progress:
    """`now` in ns since the run began."""

    now: int
    ended: int
    in_flight: int
    failed: int


def run(
    job: Job, progress: Callable[[Progress], None] = lambda _: None, tell: Callable[[str], None] = lambda _: None
) -> tuple[list[Sample], Client]:
    """Run `job` to its end; `tell` hears what its user should know meanwhile, as the address of its web page.

    Raises LoadtestError when the server cannot be used as asked, WorkerLost, ModuleNotFoundError where a package is
    missing.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        path = Path(folder) / "samples.jsonl"
        last = _work(job, path, progress, tell)
        taken = sorted(read(path), key=lambda sample: (sample.intended, sample.id))
    send_lags = sorted(sample.sent - sample.intended for sample in taken)
    return taken, Client(
        send_lag=percentile(send_lags, P99) if send_lags else 0,
        loop_lag=percentile(sorted(last["lags"]), P99) if last["lags"] else 0,
        cpu=last["cpu"] / last["wall"],
        began=last["began"],
        workers=tuple(Worker(**one) for one in last.get("workers", ())),
    )


def _work(job: Job, samples: Path, progress: Callable[[Progress], None], tell: Callable[[str], None]) -> dict[str, Any]:
    """The last message of the worker, or of the master. Whatever happens here, that process is gone afterwards."""
    last: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "loadtest.master" if job.crew.is_led else "loadtest.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert worker.stdin is not None and worker.stdout is not None
        try:
            with (
                suppress(BrokenPipeError),
                worker.stdin as stdin,
            ):  # why it ended before it had read all, it says itself
                stdin.write(json.dumps(asdict(job) | {"samples": str(samples)}))
            for line in worker.stdout:
                last = json.loads(line)
                if "ended" in last:
                    progress(Progress(**last))
                elif "tell" in last:
                    tell(last["tell"])
            worker.wait()
        finally:
            _end(worker, job.crew)
            worker.stdout.close()
        errors.seek(0)
        said = errors.read().strip()
    _check_status(worker.returncode, said)
    return last


def _end(worker: subprocess.Popen[str], crew: Crew) -> None:
    """A master gets the time to send its workers home."""
    if crew.is_led:
        worker.terminate()
        with suppress(subprocess.TimeoutExpired):
            worker.wait(GOODBYE)
    worker.kill()
    worker.wait()


def _check_status(status: int, said: str) -> None:
    """Raise what the process ended with."""
    line = said.rpartition("\n")[2]
    if status == LoadtestError.exit_status:
        raise LoadtestError(line)
    if status == LOST:
        raise WorkerLost(line)
    if status != 0:
        raise RuntimeError(f"the load generator ended with status {status}:\n{said}")
