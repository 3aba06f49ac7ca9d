"""Starts a tritonserver, waits until it really answers, keeps it up, and ends it without losing work.

One asyncio loop. Must not know engines, only their reports; what one model's death needs is model_watch's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from decode.supervision import OPTIONS, SUPERVISOR
from gapless import server_log
from gapless.model_watch import FAREWELL, ModelWatch, NoAnswer, first_of
from gapless.processes import adopt_orphans, bury, die_with_parent, kill, stubs_of
from gapless.triton_http import TritonHTTP
from gapless.tritonserver import TritonServer

QUICK_DEATHS = 5  # of the server in a row, each within QUICK seconds of its start, before the launcher gives up
QUICK = 60.0
LAST_WORDS = 0.25  # seconds that answers need from the model to the client
PATIENCE = 2.0  # seconds a server with no work left gets to end by itself


class ServeError(RuntimeError):
    """The server cannot be started or kept up; one line."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What to serve and where. Ports are real numbers here."""

    repository: Path
    models: tuple[str, ...]
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    drain_timeout: float
    options: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    ready_file: Path | None = None


class Launcher:
    """One server, started again when it dies. `run` returns the exit status."""

    def __init__(self, plan: Plan, server: TritonServer, say: Callable[[str], None], log: IO[bytes]) -> None:
        self.plan = plan
        self.http = TritonHTTP(plan.host, plan.http_port)
        self._server = server
        self._say = say
        self._log = log
        self._watch = ModelWatch(self.http, (plan.http_port, plan.grpc_port), say)
        self._tail: deque[str] = deque(maxlen=400)  # lines of the server's log, see server_log
        self._rest = b""  # of a line not yet whole
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    async def run(self, on_ready: Callable[[list[str]], None]) -> int:
        """Serve until a signal; `on_ready` gets the names of models that report to us.

        Raises ServeError when the server does not start or keeps dying.
        """
        adopt_orphans()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        listener = await self._watch.listen()
        patrol = asyncio.ensure_future(self._watch.patrol())
        try:
            await self._keep_serving(on_ready)
        finally:
            patrol.cancel()
            self._watch.stop()
            listener.close()
        return 1 if self._force.is_set() else 0

    async def _keep_serving(self, on_ready: Callable[[list[str]], None]) -> None:
        deaths, ever_ready = 0, False
        while not self._stop.is_set():
            began = time.monotonic()
            process = await self._start()
            self._watch.attach(process.pid)
            exited = asyncio.ensure_future(process.wait())
            try:
                if await self._until_ready(exited):
                    self._write_ready_file(process.pid)
                    self._say(f"ready after {time.monotonic() - began:.1f} s")
                    if not ever_ready:
                        on_ready(self._watch.models)
                    ever_ready = True
                    await first_of(exited, self._stop.wait())
                if self._stop.is_set():
                    return await self._drain(process.pid, exited)
            finally:
                self._watch.detach()
                self._remove_ready_file()
                await self._bury(process)
            if self._watch.wants_restart:
                continue
            deaths = deaths + 1 if time.monotonic() - began < QUICK else 1
            if not ever_ready or deaths >= QUICK_DEATHS:
                what = f"died {deaths} times in a row" if ever_ready else "did not start"
                raise ServeError(f"tritonserver {what}: {server_log.reason(self._tail)}")
            pause = min(8.0, 0.5 * 2 ** (deaths - 1))
            self._say(f"tritonserver died; starting it again in {pause:g} s")
            await first_of(asyncio.sleep(pause), self._stop.wait())
        return None

    async def _start(self) -> asyncio.subprocess.Process:
        plan, server = self.plan, self._server
        self._tail.clear()  # what another server said on its way to its end is not said of this one
        flags = {
            "model-repository": plan.repository,
            "model-control-mode": "explicit",
            "http-address": plan.host,
            "http-port": plan.http_port,
            "grpc-address": plan.host,
            "grpc-port": plan.grpc_port,
            "metrics-port": plan.metrics_port,
            "exit-timeout-secs": int(plan.drain_timeout) + 1,
        }
        environment = {**server.environment, SUPERVISOR: self._watch.name}
        if plan.options:
            environment[OPTIONS] = json.dumps(plan.options)
        # A pipe of our own: asyncio's would make the end of the server wait for its stubs, which share it.
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *server.command,
            *(f"--{name}={value}" for name, value in flags.items()),
            *(f"--load-model={name}" for name in plan.models),
            *plan.flags,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,  # Ctrl-C is for the launcher, which drains
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        os.close(writing)
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, self._copy_log, reading)
        return process

    def _copy_log(self, reading: int) -> None:
        try:
            data = os.read(reading, 65536)
        except BlockingIOError:
            return
        self._log.write(data)
        self._log.flush()
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._tail.extend(line.decode(errors="replace") for line in lines if line.strip())
        if not data:
            asyncio.get_running_loop().remove_reader(reading)
            os.close(reading)

    async def _until_ready(self, exited: asyncio.Future[int]) -> bool:
        """True when each of our models has yielded a token; False when the server ended or we are to stop."""
        while not exited.done() and not self._stop.is_set():
            if await asyncio.to_thread(self.http.ready):
                await asyncio.sleep(0.1)  # models report before they are ready; let the reports be read
                for name in self._watch.models:
                    answers = asyncio.ensure_future(self._watch.until_it_answers(name))
                    await first_of(answers, exited, self._stop.wait())
                    if not answers.done():
                        answers.cancel()
                        return False
                    try:
                        answers.result()
                    except NoAnswer as error:
                        raise ServeError(str(error)) from error
                return True
            await first_of(exited, self._stop.wait(), asyncio.sleep(0.1))
        return False

    async def _drain(self, server: int, exited: asyncio.Future[int]) -> None:
        """Our models refuse what is new and finish what runs; then the server ends, with what other models still do."""
        wait = self.plan.drain_timeout
        until = time.monotonic() + wait
        self._watch.detach()
        lines = [line for line in self._watch.lines.values() if line.report.failure is None]
        self._say(f"draining: new requests are refused, open ones get {wait:g} s")
        for line in lines:
            with contextlib.suppress(OSError):
                line.writer.write(f"drain {wait}\n".encode())
        while any(not x.report.drained and x.report.pid in self._watch.lines for x in lines) and not exited.done():
            if self._force.is_set() or time.monotonic() > until + FAREWELL:
                return
            await asyncio.sleep(0.05)
        others = await self._watch.others()
        await first_of(exited, self._force.wait(), asyncio.sleep(LAST_WORDS))
        if not exited.done() and not self._force.is_set():
            kill(server, signal.SIGTERM)
            # An idle gRPC stream keeps this server from ending, and so does a model that died with open streams: when
            # no other model can be at work there is nothing to wait for.
            patience = until - time.monotonic() if others and not self._watch.ghosts else PATIENCE
            await first_of(exited, self._force.wait(), asyncio.sleep(max(PATIENCE, patience)), self._idle())

    async def _idle(self) -> None:
        """Until the server has answered everything and had time to end, which a model that died at work prevents."""
        while not server_log.all_answered(self._tail):
            await asyncio.sleep(0.1)
        await asyncio.sleep(PATIENCE)

    async def _bury(self, process: asyncio.subprocess.Process) -> None:
        """Nothing of the server is left after this."""
        stubs = {line.stub.pid: line.stub for line in self._watch.lines.values()}
        stubs |= {stub.pid: stub for stub in stubs_of(process.pid)}
        if process.returncode is None:
            kill(process.pid)
        await process.wait()
        await asyncio.to_thread(bury, list(stubs.values()))
        self._watch.lines.clear()

    def _signalled(self) -> None:
        (self._force if self._stop.is_set() else self._stop).set()

    def _write_ready_file(self, server: int) -> None:
        path, plan = self.plan.ready_file, self.plan
        if path is None:
            return
        ports = {"http_port": plan.http_port, "grpc_port": plan.grpc_port, "metrics_port": plan.metrics_port}
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"pid": os.getpid(), "server_pid": server, "host": self.http.host, **ports}) + "\n")
        fresh.replace(path)

    def _remove_ready_file(self) -> None:
        if self.plan.ready_file is not None:
            self.plan.ready_file.unlink(missing_ok=True)
