"""A plain tritonserver for tests, without the launcher: loopback only, free ports, ended with the block."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapless.tritonserver import find_server

KINDS = ("http", "grpc", "metrics")


@dataclass
class Triton:
    process: subprocess.Popen[bytes]
    repository: Path
    log_file: Path
    ports: dict[str, int]

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def call(self, path: str, body: object = None, port: str = "http", timeout: float = 30.0) -> tuple[int, str]:
        """Status and text; POST where there is a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=timeout)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def states(self) -> dict[str, str]:
        """Of every version that the index lists, by model; the best one where there are several."""
        listed = json.loads(self.call("/v2/repository/index", {})[1])
        return {entry["name"]: entry.get("state", "") for entry in sorted(listed, key=lambda it: it.get("state", ""))}

    def stubs(self, model: str) -> int:
        """How many processes a Python model has."""
        return len(stubs_of(self.repository / model))

    def up(self, seconds: float) -> bool:
        """Whether it listens within so many seconds; False at once when it has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            try:
                return self.call("/v2/health/live")[0] == 200
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
        return False

    def infer(self, model: str, shape: tuple[int, ...] = (1, 1), inputs: str = "in", **more: Any) -> Answer:
        """One request of ones for each of the comma-separated inputs; `more` are its parameters."""
        count = 1
        for size in shape:
            count *= size
        sent = [{"name": name, "shape": shape, "datatype": "INT32", "data": [1] * count} for name in inputs.split(",")]
        began = time.monotonic()
        status, text = self.call(f"/v2/models/{model}/infer", {"inputs": sent, "parameters": more})
        return Answer(status, text, time.monotonic() - began)


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    seconds: float

    def __getitem__(self, output: str) -> int:
        """The first number of an output."""
        assert self.status == 200, self.text
        return int(next(it["data"][0] for it in json.loads(self.text)["outputs"] if it["name"] == output))


@contextmanager
def triton(repository: Path, *flags: str) -> Iterator[Triton]:
    """Started, not awaited."""
    server = find_server({name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")})
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in KINDS]
    ports = {kind: one.getsockname()[1] for kind, one in zip(KINDS, sockets, strict=True)}
    for one in sockets:
        one.close()
    command = [*server.command, f"--model-repository={repository}", "--allow-gpu-metrics=false"]
    command += [f"--{kind}-address=127.0.0.1" for kind in KINDS]
    command += [f"--{kind}-port={port}" for kind, port in ports.items()]
    log = repository.with_name(f"{repository.name}.log")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*command, *flags], stdout=sink, stderr=subprocess.STDOUT, env=dict(server.environment)
        )
    try:
        yield Triton(process, repository, log, ports)
    finally:
        stubs = stubs_of(repository)
        process.kill()  # an ordered end takes seconds for every ten models
        process.wait()
        for pid, region in (stubs | stubs_of(repository)).items():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            region.unlink(missing_ok=True)


def stubs_of(folder: Path) -> dict[int, Path]:
    """Processes of Python models under a folder, and the files under /dev/shm that they share with their server."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word.startswith(f"{folder}/") and word.endswith("/model.py") for word in words):
            found[int(entry)] = Path("/dev/shm") / next(word for word in words if "_shm_region_" in word)
    return found
