"""A real `gapless serve` for tests, and the clients that talk to it."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

ROOT = Path(__file__).resolve().parent.parent


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of `what()`; fails the test when there is none in time."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
    return found


def region(stub: int) -> Path:
    """The file under /dev/shm that a stub shares with its server."""
    arguments = Path(f"/proc/{stub}/cmdline").read_text().split("\0")
    return Path("/dev/shm") / next(a for a in arguments if a.startswith("triton_python_backend_shm_region"))


@dataclass
class Serving:
    """A launcher that is up."""

    process: subprocess.Popen[bytes]
    out: Path
    model: str
    ready_file: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    @property
    def stub(self) -> int:
        """The pid of the living stub."""
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if parent == str(self.facts["server_pid"]) and state != "Z":
                return int(entry)
        raise AssertionError("no stub is alive")

    def read_facts(self) -> None:
        self.facts = json.loads(self.ready_file.read_text())

    def answers(self) -> bool:
        """Whether it yields a token now; facts are read anew, since the server may be another one."""
        try:
            self.read_facts()
            return self.post("generate", {"text_input": "hello", "max_tokens": 1}, timeout=5)[0] == 200
        except OSError:
            return False

    def post(self, path: str, body: object, timeout: float = 30.0, model: str = "") -> tuple[int, str]:
        """Status and text; `body` is JSON, or bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.facts["http_port"], timeout=timeout)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body)
            connection.request("POST", f"/v2/models/{model or self.model}/{path}", data)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def generate(self, **body: Any) -> dict[str, Any]:
        status, text = self.post("generate", body)
        assert status == 200, text
        return json.loads(text)

    def metric(self, name: str, **labels: str) -> float:
        """One number from the metrics page, 0 when it is not there yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.facts["metrics_port"], timeout=10)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in page.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(w in series for w in wanted):
                return float(value)
        return 0.0

    def stream(self, request_id: str = "", tier: str | None = None, **inputs: Any) -> Stream:
        return Stream(self, request_id, tier, **inputs)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


class Stream:
    """One gRPC stream; `events` are (text, outputs) or an error string."""

    def __init__(self, serving: Serving, request_id: str = "", tier: str | None = None, **inputs: Any) -> None:
        self.client = grpcclient.InferenceServerClient(f"127.0.0.1:{serving.facts['grpc_port']}")
        self.events: queue.Queue[tuple[str, dict[str, str]] | str] = queue.Queue()
        self._model = serving.model
        self.client.start_stream(self._take)
        self.send(request_id, tier, **inputs)

    def send(self, request_id: str = "", tier: str | None = None, **inputs: Any) -> None:
        tensors = [tensor(name, value) for name, value in inputs.items()]
        parameters = {"tier": tier} if tier else None
        self.client.async_stream_infer(self._model, tensors, request_id=request_id, parameters=parameters)

    def next(self, timeout: float = 20.0) -> tuple[str, dict[str, str]] | str:
        return self.events.get(timeout=timeout)

    def read(self, timeout: float = 60.0) -> tuple[list[str], dict[str, str]]:
        """All pieces of text and the outputs of the last one. Fails on an error."""
        pieces: list[str] = []
        while True:
            event = self.next(timeout)
            assert not isinstance(event, str), event
            pieces.append(event[0])
            if "finish_reason" in event[1]:
                return pieces, event[1]

    def error(self, timeout: float = 20.0) -> str:
        """The error that comes next, whatever text comes before it."""
        while not isinstance(event := self.next(timeout), str):
            assert "finish_reason" not in event[1], "it finished without an error"
        return event

    def close(self, cancel: bool = False) -> None:
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()

    def _take(self, result: Any, error: Any) -> None:
        if error is not None:
            self.events.put(str(error))
            return
        names = [output.name for output in result.get_response().outputs]
        outputs = {name: result.as_numpy(name)[0].decode() for name in names}
        self.events.put((outputs.pop("text_output", ""), outputs))


def tensor(name: str, value: Any) -> grpcclient.InferInput:
    """bytes and str → BYTES [1], bool → BOOL [1], a list → INT64 [n], a numpy array as it is."""
    if isinstance(value, bool):
        array = np.array([value])
    elif isinstance(value, (str, bytes)):
        array = np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)
    elif isinstance(value, dict):
        array = np.array([json.dumps(value).encode()], dtype=np.object_)
    else:
        array = np.asarray(value, dtype=np.int64) if isinstance(value, list) else value
    kind = {"O": "BYTES", "b": "BOOL", "f": "FP32"}.get(array.dtype.kind, "INT64")
    made = grpcclient.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


@contextmanager
def serve(repository: Path, folder: Path, *arguments: str, model: str = "") -> Iterator[Serving]:
    """`gapless serve` on free ports, ended when the block is left."""
    out, ready = folder / "serve.out", folder / "ready.json"
    command = [sys.executable, "-m", "gapless", "serve", "--model-repository", str(repository)]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--ready-file", str(ready)]
    command += ["--log-file", str(folder / "triton.log"), *arguments]
    with out.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, cwd=ROOT)
    model = model or next(repository.glob("*/config.pbtxt")).parent.name
    serving = Serving(process, out, model, ready)
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None, 120)
        assert process.poll() is None, out.read_text()
        serving.read_facts()
        yield serving
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
