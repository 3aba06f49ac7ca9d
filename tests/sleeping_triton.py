"""A real Triton whose models sleep, with batchers as a test wants them, and the clients that load it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from serving import wait_for
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from config_gen.batching import Batching, QueuePolicy
from gapless.tritonserver import find_server

MODEL = Path(__file__).parent / "models" / "sleeper" / "model.py"


class Answer(NamedTuple):
    """What a client saw of one request; moments in ns of the monotonic clock, `began` and `done` those of its batch."""

    level: int
    size: int
    sent: int
    ended: int
    reason: str  # as the simulation calls it
    began: int = 0
    done: int = 0
    rows: int = 0  # of its batch


def policy_text(policy: QueuePolicy) -> str:
    action = {"reject": "REJECT", "delay": "DELAY"}[policy.action]
    timeout = (policy.timeout or 0) // 1000
    return f"timeout_action: {action} default_timeout_microseconds: {timeout} max_queue_size: {policy.max_queue or 0}"


def batching_text(batching: Batching) -> str:
    parts = [f"max_queue_delay_microseconds: {batching.delay // 1000}"]
    parts += [f"preferred_batch_size: {size}" for size in batching.preferred]
    if batching.levels:
        parts += [f"priority_levels: {len(batching.levels)} default_priority_level: {batching.default_level}"]
        for level, policy in enumerate(batching.levels, 1):
            parts += [f"priority_queue_policy {{ key: {level} value {{ {policy_text(policy)} }} }}"]
    else:
        parts += [f"default_queue_policy {{ {policy_text(batching.default_policy)} }}"]
    return "\n  ".join(parts)


def add_sleeper(repository: Path, name: str, batching: Batching, base: float, row: float) -> None:
    """A model that sleeps `base` ms and `row` ms for each row."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    shutil.copy(MODEL, version)
    (repository / name / "config.pbtxt").write_text(f"""
name: "{name}"
backend: "python"
max_batch_size: {batching.max_batch_size}
input [ {{ name: "x" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "seen" data_type: TYPE_INT64 dims: [ 3 ] }} ]
instance_group [ {{ count: {batching.instances} kind: KIND_CPU }} ]
dynamic_batching {{
  {batching_text(batching)}
}}
parameters {{ key: "base" value: {{ string_value: "{base}" }} }}
parameters {{ key: "row" value: {{ string_value: "{row}" }} }}
""")


@contextmanager
def triton(repository: Path, log: Path) -> Iterator[str]:
    """A plain tritonserver over `repository` that is ready; its gRPC address."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")}
    server = find_server(clean)
    command = [*server.command, f"--model-repository={repository}", "--allow-http=false", "--allow-metrics=false"]
    command += ["--grpc-address=127.0.0.1", f"--grpc-port={port}"]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=dict(server.environment))
    try:
        address = f"127.0.0.1:{port}"
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            wait_for(lambda: process.poll() is not None or is_ready(stub), 120)
        assert process.poll() is None, log.read_text()
        yield address
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def neighbours() -> Iterator[None]:
    """Somebody else's work on each core: the batcher's race is lost more often there than on an idle machine."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def is_ready(stub: Any) -> bool:
    try:
        return bool(stub.ServerReady(pb.ServerReadyRequest(), timeout=1).ready)
    except grpc.RpcError:
        return False


class Client:
    """Sends to one server on one event loop."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.infer = service_pb2_grpc.GRPCInferenceServiceStub(self.channel).ModelInfer

    async def ask(self, model: str, level: int = 0, size: int = 1) -> Answer:
        request = pb.ModelInferRequest(model_name=model)
        request.inputs.add(name="x", datatype="INT32", shape=[size, 1])
        request.raw_input_contents.append(bytes(4 * size))
        if level:
            request.parameters["priority"].uint64_param = level
        sent = time.monotonic_ns()
        try:
            reply = await self.infer(request)
        except grpc.aio.AioRpcError as error:
            return Answer(level, size, sent, time.monotonic_ns(), reason(error))
        ended = time.monotonic_ns()
        seen = np.frombuffer(reply.raw_output_contents[0], dtype=np.int64)
        return Answer(level, size, sent, ended, "", *(int(value) for value in seen[:3]))

    async def open_loop(self, model: str, schedule: Sequence[tuple[float, int, int]]) -> list[Answer]:
        """Send at the given s from now, each with its level and rows, whatever becomes of those before."""
        loop = asyncio.get_running_loop()
        begin, tasks = loop.time(), []
        for at, level, size in schedule:
            await asyncio.sleep(begin + at - loop.time())
            tasks.append(asyncio.ensure_future(self.ask(model, level, size)))
        return list(await asyncio.gather(*tasks))

    async def closed_loop(self, model: str, users: int, seconds: float, level: int = 0) -> list[Answer]:
        """`users` that each send again as soon as they are answered, for so long."""
        until = time.monotonic() + seconds

        async def user() -> list[Answer]:
            answers = []
            while time.monotonic() < until:
                answers.append(await self.ask(model, level))
            return answers

        return [answer for answers in await asyncio.gather(*(user() for _ in range(users))) for answer in answers]


def reason(error: grpc.aio.AioRpcError) -> str:
    known = {"Request timeout expired": "timeout", "Exceeds maximum queue size": "queue full"}
    for text, name in known.items():
        if text in (error.details() or ""):
            return name
    return f"{error.code()}: {error.details()}"
