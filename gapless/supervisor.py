"""Starts a tritonserver, waits until it really answers, keeps it and its models alive, and ends it without losing work.

One asyncio loop. Models speak over decode.supervision; the end of a model's line is its death. Triton itself notices
neither that nor a dead engine thread, and its open streams would hang for ever: the launcher cuts the client
connections and loads the model again. What that costs other models on the server: their clients see one connection
reset; the models stay loaded. Must not know engines, only reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from decode.supervision import OPTIONS, SUPERVISOR, Report
from gapless.processes import Stub, adopt_orphans, bury, cut_connections, die_with_parent, kill, release, stubs_of
from gapless.triton_http import TritonError, TritonHTTP, one_line
from gapless.tritonserver import TritonServer

SILENCE = 15.0  # seconds without a report after which a model's process counts as frozen
FAREWELL = 3.0  # seconds a broken model gets to tell its clients before its process is killed
LOAD_TIMEOUT = 600.0
ANSWER_TIMEOUT = 60.0
LOAD_TRIES = 3
QUICK_DEATHS = 5  # of the server, within QUICK seconds of its start, before the launcher gives up
QUICK = 60.0


class ServeError(RuntimeError):
    """The server cannot be kept up; one line."""

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


@dataclass(slots=True)
class _Line:
    """One model's process, as its reports have it."""

    report: Report
    writer: asyncio.StreamWriter
    stub: Stub
    server: int  # pid of the tritonserver it belongs to
    heard: float
    broken_since: float | None = None


class Launcher:
    """`run` returns the exit status."""

    def __init__(self, plan: Plan, server: TritonServer, say: Callable[[str], None], log: IO[bytes]) -> None:
        self.plan = plan
        self.http = TritonHTTP(plan.host, plan.http_port)
        self._server = server
        self._say = say
        self._log = log
        self._name = f"gapless-{os.getpid()}-{secrets.token_hex(8)}"
        self._lines: dict[int, _Line] = {}  # by pid of the model's process
        self._process: asyncio.subprocess.Process | None = None
        self._ghosts = False  # a killed stub's model stays alive in the server for ever
        self._tail: deque[str] = deque(maxlen=200)
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovering: set[str] = set()

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Serve until a signal. Raises ServeError when the server does not start or keeps dying."""
        adopt_orphans()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        listener = await asyncio.start_unix_server(self._hear, path="\0" + self._name)
        try:
            await self._keep_serving(on_ready)
            return 1 if self._force.is_set() else 0
        finally:
            listener.close()
            await self._end_server()
            for task in self._tasks:
                task.cancel()
            if self.plan.ready_file is not None:
                self.plan.ready_file.unlink(missing_ok=True)

    async def _keep_serving(self, on_ready: Callable[[], None]) -> None:
        deaths = 0
        while not self._stop.is_set():
            began = time.monotonic()
            exited = await self._start()
            if await self._until_ready(exited):
                self._write_ready_file()
                if began_first := deaths == 0:
                    on_ready()
                self._say("ready" if began_first else f"the server answers again after {_since(began)}")
                watch = self._spawn(self._watch())
                await self._first_of(exited, self._stop.wait())
                watch.cancel()
            elif not self._stop.is_set() and deaths == 0:
                raise ServeError(f"tritonserver did not start: {self._reason()}")
            if self._stop.is_set():
                return await self._drain(exited)
            deaths = 1 if time.monotonic() - began > QUICK else deaths + 1
            await self._end_server()
            if deaths >= QUICK_DEATHS:
                raise ServeError(f"tritonserver died {deaths} times in a row: {self._reason()}")
            pause = min(8.0, 0.5 * 2 ** (deaths - 1))
            self._say(f"tritonserver ended; starting it again in {pause:g} s")
            await self._first_of(asyncio.sleep(pause), self._stop.wait())
        return None

    async def _start(self) -> asyncio.Future[int]:
        plan, server = self.plan, self._server
        command = [
            *server.command,
            f"--model-repository={plan.repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in plan.models),
            f"--http-address={plan.host}",
            f"--http-port={plan.http_port}",
            f"--grpc-address={plan.host}",
            f"--grpc-port={plan.grpc_port}",
            f"--metrics-port={plan.metrics_port}",
            f"--exit-timeout-secs={int(plan.drain_timeout) + 1}",
            *plan.flags,
        ]
        environment = {**server.environment, SUPERVISOR: self._name}
        if plan.options:
            environment[OPTIONS] = json.dumps(plan.options)
        self._ghosts = False
        self._process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the launcher, which drains
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self._spawn(self._copy_log(self._process))
        return asyncio.ensure_future(self._process.wait())

    async def _copy_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while chunk := await process.stdout.read(65536):
            self._log.write(chunk)
            self._log.flush()
            self._tail.extend(line for line in chunk.decode(errors="replace").splitlines() if line.strip())

    async def _until_ready(self, exited: asyncio.Future[int]) -> bool:
        """Whether the server answers with a token from each of our models; False when it ended or we are to stop."""
        while not exited.done() and not self._stop.is_set():
            if await asyncio.to_thread(self.http.ready):
                await asyncio.sleep(0.1)  # models report before they are ready; let the reports be read
                for name in sorted({line.report.model for line in self._lines.values()}):
                    await self._until_it_answers(name, exited)
                return not exited.done() and not self._stop.is_set()
            await asyncio.sleep(0.1)
        return False

    async def _until_it_answers(self, model: str, exited: asyncio.Future[int]) -> None:
        """Wait for a token. Raises ServeError when none comes in time."""
        until, reason = time.monotonic() + ANSWER_TIMEOUT, ""
        while not exited.done() and not self._stop.is_set():
            try:
                await asyncio.to_thread(self.http.generate, model, ANSWER_TIMEOUT)
                return
            except (TritonError, OSError) as error:
                reason = str(error)
            if time.monotonic() > until:
                raise ServeError(f"{model} does not answer: {reason}")
            await asyncio.sleep(0.25)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One model's line, from its first report to its end."""
        line: _Line | None = None
        server = self._process.pid if self._process else 0
        try:
            while data := await reader.readline():
                report = Report.parse(data)
                if line is None:
                    stub = next((s for s in stubs_of(server) if s.pid == report.pid), Stub(report.pid, None))
                    line = self._lines[report.pid] = _Line(report, writer, stub, server, time.monotonic())
                line.report, line.heard = report, time.monotonic()
        except (ValueError, TypeError, OSError):
            pass  # not one of ours, or cut off in the middle of a word: the same as its end
        finally:
            writer.close()
        if line is not None:
            self._lines.pop(line.report.pid, None)
            if not line.report.leaving and not self._stop.is_set():
                self._spawn(self._recover(line))

    async def _watch(self) -> None:
        """Kill model processes that are frozen, or broken and done with telling so; their lines' end does the rest."""
        while True:
            await asyncio.sleep(0.25)
            now = time.monotonic()
            for line in list(self._lines.values()):
                report = line.report
                if report.failure is not None and line.broken_since is None:
                    line.broken_since = now
                    self._say(f"{report.model} is broken: {report.failure}")
                told = line.broken_since is not None and (report.open == 0 or now - line.broken_since > FAREWELL)
                if told or now - line.heard > SILENCE:
                    kill(report.pid)

    async def _recover(self, line: _Line) -> None:
        """A model's process is dead: end the streams it left hanging and load it again, else start the server anew."""
        process, name, began = self._process, line.report.model, time.monotonic()
        await asyncio.sleep(0.05)  # when the whole server went down its exit is known by now
        if process is None or process.pid != line.server or process.returncode is not None:
            return
        if name in self._recovering:
            return
        self._recovering.add(name)
        try:
            self._say(f"{name} died with {line.report.open} open requests; loading it again")
            release(line.stub)
            self._ghosts = True
            if line.report.open:
                cut_connections(process.pid, (self.plan.http_port, self.plan.grpc_port))
            await self._reload(name, process)
            self._say(f"{name} answers again after {_since(began)}")
        except (OSError, TritonError, ServeError) as error:
            if process.returncode is None and not self._stop.is_set():
                self._say(f"{name} cannot be brought back alone ({error}); starting the server anew")
                kill(process.pid)
        finally:
            self._recovering.discard(name)

    async def _reload(self, name: str, process: asyncio.subprocess.Process) -> None:
        for attempt in range(1, LOAD_TRIES + 1):
            try:
                await asyncio.to_thread(self.http.reload, name, LOAD_TIMEOUT)
                break
            except TritonError:
                if attempt == LOAD_TRIES:
                    raise
                await asyncio.sleep(attempt)
        exited = asyncio.ensure_future(process.wait())
        await self._until_it_answers(name, exited)
        exited.cancel()

    async def _drain(self, exited: asyncio.Future[int]) -> None:
        """Our models refuse what is new and finish what runs; then the server, with what other models still do, ends."""
        plan = self.plan
        until = time.monotonic() + plan.drain_timeout
        lines = [line for line in self._lines.values() if line.report.failure is None]
        self._say(
            f"draining: {sum(line.report.open for line in lines)} open requests, at most {plan.drain_timeout:g} s"
        )
        for line in lines:
            with contextlib.suppress(OSError):
                line.writer.write(f"drain {plan.drain_timeout}\n".encode())
        while any(not x.report.drained and x.report.pid in self._lines for x in lines) and not exited.done():
            if self._force.is_set() or time.monotonic() > until + FAREWELL:
                return
            await asyncio.sleep(0.05)
        await self._first_of(asyncio.sleep(0.25), self._force.wait())  # the last answers are on their way out
        others = await self._others()
        if not exited.done() and not self._force.is_set():
            kill(_pid(self._process), signal.SIGTERM)
            # An idle gRPC stream, or a stub that was killed, keeps this server from ending by itself: when no other
            # model can be at work there is nothing to wait for.
            patience = max(2.0, until - time.monotonic()) if others and not self._ghosts else 2.0
            await self._first_of(exited, self._force.wait(), asyncio.sleep(patience))

    async def _others(self) -> bool:
        """Whether models are loaded that do not report to us."""
        try:
            loaded = await asyncio.to_thread(self.http.models)
        except (OSError, TritonError):
            return False
        return bool(set(loaded) - {line.report.model for line in self._lines.values()})

    async def _end_server(self) -> None:
        """Nothing of the server is left after this."""
        process, self._process = self._process, None
        if process is None:
            return
        stubs = {line.stub.pid: line.stub for line in self._lines.values() if line.server == process.pid}
        stubs |= {stub.pid: stub for stub in stubs_of(process.pid)}
        if process.returncode is None:
            kill(process.pid)
        await process.wait()
        await asyncio.to_thread(bury, list(stubs.values()))

    def _signalled(self) -> None:
        (self._force if self._stop.is_set() else self._stop).set()

    def _write_ready_file(self) -> None:
        path = self.plan.ready_file
        if path is None:
            return
        facts = {
            "pid": os.getpid(),
            "server_pid": _pid(self._process),
            "host": self.http.host,
            "http_port": self.plan.http_port,
            "grpc_port": self.plan.grpc_port,
            "metrics_port": self.plan.metrics_port,
        }
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(facts) + "\n")
        fresh.replace(path)

    def _reason(self) -> str:
        """The most telling line of the server's log."""
        failed = [line for line in self._tail if "failed to load '" in line or "Poll failed" in line]
        errors = [line for line in self._tail if line.startswith(("E", "error:"))]
        lines = failed or errors[-1:] or list(self._tail)[-1:] or ["it printed nothing"]
        return one_line(lines[0].partition("] ")[2].strip('"') or lines[0])

    def _spawn(self, work) -> asyncio.Task[None]:  # noqa: ANN001
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _first_of(*waits) -> None:  # noqa: ANN002
        futures = [asyncio.ensure_future(wait) for wait in waits]
        kept = [w for w in waits if isinstance(w, asyncio.Future)]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for future in futures:
            if future not in kept:
                future.cancel()


def _pid(process: asyncio.subprocess.Process | None) -> int:
    assert process is not None
    return process.pid


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"
