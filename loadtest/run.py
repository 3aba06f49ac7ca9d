"""Runs a job in the load generator's own process and brings back its samples. Must not know targets or how to print."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from config_gen.percentiles import percentile
from loadtest.samples import Planned, Sample, read

P99 = Fraction(99, 100)
NEEDED = ("locust", "grpc")  # what only the load generator's process imports
BURST_ENDED = "the burst ended"  # the error of requests that a closed burst cut off


class LoadtestError(ValueError):
    """The run cannot be made as asked; one line."""

    exit_status = 2


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


@dataclass(frozen=True)
class Client:
    """How the load generator itself did: P99 of its lags in ns, and the share of one core it used.

    `began` is the run's time 0 by its machine's clock, in ns since the epoch: what was seen elsewhere goes by that.
    """

    send_lag: float  # actual minus intended send time
    loop_lag: float  # how late its event loop wakes a sleeper
    cpu: float
    began: int = 0


@dataclass(frozen=True)
class Progress:
    """`now` in ns since the run began."""

    now: int
    ended: int
    in_flight: int
    failed: int


def run(
    job: Job, progress: Callable[[Progress], None] = lambda _: None, opened: Callable[[str], None] = lambda _: None
) -> tuple[list[Sample], Client]:
    """Run `job` to its end; `opened` hears the address of its web page.

    Raises LoadtestError when the server cannot be used as asked, ModuleNotFoundError where a package is missing.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        path = Path(folder) / "samples.jsonl"
        last = _work(job, path, progress, opened)
        taken = sorted(read(path), key=lambda sample: (sample.intended, sample.id))
    send_lags = sorted(sample.sent - sample.intended for sample in taken)
    return taken, Client(
        send_lag=percentile(send_lags, P99) if send_lags else 0,
        loop_lag=percentile(sorted(last["lags"]), P99) if last["lags"] else 0,
        cpu=last["cpu"] / last["wall"],
        began=last["began"],
    )


def _work(
    job: Job, samples: Path, progress: Callable[[Progress], None], opened: Callable[[str], None]
) -> dict[str, Any]:
    """The worker's last message. Whatever happens here, the worker is gone afterwards."""
    text = json.dumps(asdict(job) | {"samples": str(samples)})
    last: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "loadtest.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert worker.stdin is not None and worker.stdout is not None
        try:
            with worker.stdin as stdin:
                stdin.write(text)
            for line in worker.stdout:
                last = json.loads(line)
                if "ended" in last:
                    progress(Progress(**last))
                elif "ui" in last:
                    opened(last["ui"])
            worker.wait()
        finally:
            worker.kill()
            worker.wait()
            worker.stdout.close()
        errors.seek(0)
        said = errors.read().strip()
    if worker.returncode == LoadtestError.exit_status:
        raise LoadtestError(said.splitlines()[-1])
    if worker.returncode != 0:
        raise RuntimeError(f"the load generator ended with status {worker.returncode}:\n{said}")
    return last
