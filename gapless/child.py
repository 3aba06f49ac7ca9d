"""A server of our own for as long as a block lasts: `gapless serve` as a child on free ports, gone afterwards.

Used by commands that measure a whole server. Must not know what is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gapless.processes import die_with_parent

START_SECONDS = 180.0
STOP_SECONDS = 40.0


class ChildError(RuntimeError):
    """The server could not be started; one line."""

    exit_status = 1


@contextmanager
def server(repository: Path, models: Sequence[str], options: Mapping[str, str], log: Path) -> Iterator[str]:
    """Serve `models`, LLMs with `options` over their parameters; yields the gRPC endpoint. Raises ChildError."""
    with launched(repository, models, options, log) as ports:
        yield f"127.0.0.1:{ports['grpc_port']}"


@contextmanager
def launched(
    repository: Path, models: Sequence[str], options: Mapping[str, str], log: Path
) -> Iterator[dict[str, int]]:
    """The same; yields the facts of the ready file: `http_port`, `grpc_port`, `metrics_port` and more."""
    command = [sys.executable, "-m", "gapless", "serve", "--model-repository", str(repository)]
    for model in models:
        command += ["--model", model]
    for kind in ("http", "grpc", "metrics"):
        command += [f"--{kind}-port", "0"]
    for option, value in options.items():
        command += ["--option", f"{option}={value}"]
    log.parent.mkdir(parents=True, exist_ok=True)
    triton_log = log.with_name("tritonserver.log")
    triton_log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder, log.open("w") as said:
        ready = Path(folder) / "ready.json"
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready), "--log-file", str(triton_log)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to answer: the load ends first, then the server
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        try:
            yield _ready(process, ready, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> dict[str, int]:
    """The facts in the ready file, once it is there."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if ready.exists():
            facts: dict[str, int] = json.loads(ready.read_text())
            return facts
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise ChildError(f"the server ended with status {process.returncode}: {said[-1]} (all of it in {log})")
        time.sleep(0.1)
    raise ChildError(f"the server was not ready within {START_SECONDS:g} s; see {log}")
