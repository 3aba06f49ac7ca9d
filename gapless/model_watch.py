"""Listens to the models of a tritonserver and brings back those that die, at the least cost to the others.

A model's line (decode.supervision) ends when its process does. Triton itself notices neither a dead stub nor a dead
engine thread, and streams that were open hang for ever, also after the model is loaded again. Where no other model is
loaded the server is started anew, which is clean. Else the launcher cuts the client connections and reloads the one
model: clients of the others see one connection reset and their models stay loaded (but see docs/LOG.md: version 2.51
at times aborts by itself when a busy stub was killed). Must not know how the server is started or ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from decode.supervision import Report
from gapless.processes import Stub, cut_connections, kill, release, stubs_of
from gapless.triton_http import TritonError, TritonHTTP

SILENCE = 20.0  # seconds without a report after which a model's process counts as frozen
FAREWELL = 3.0  # seconds a broken model gets to tell its clients before its process is killed
LOAD_TIMEOUT = 600.0
ANSWER_TIMEOUT = 60.0
LOAD_TRIES = 3


class NoAnswer(RuntimeError):
    """A model is loaded but yields no token; one line."""


@dataclass(slots=True)
class Line:
    """One model's process, as its reports have it."""

    report: Report
    stub: Stub
    writer: asyncio.StreamWriter
    heard: float
    broken_since: float | None = None


class ModelWatch:
    """Watches the models of one tritonserver process at a time; `attach` says which."""

    def __init__(self, http: TritonHTTP, ports: Collection[int], say: Callable[[str], None]) -> None:
        self.name = f"gapless-{os.getpid()}-{secrets.token_hex(8)}"  # of the socket that models report to
        self.lines: dict[int, Line] = {}  # by pid of the model's process
        self.wants_restart = False  # the server was killed because of a model, not by itself
        self.ghosts = False  # a model whose streams were cut lives on in the server, which then cannot end by itself
        self._http = http
        self._ports = ports
        self._say = say
        self._server = 0  # pid; 0 = none is to be watched
        self._recovering: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> asyncio.AbstractServer:
        return await asyncio.start_unix_server(self._hear, path="\0" + self.name)

    def attach(self, server: int) -> None:
        """From now on deaths are those of models of this process."""
        self._server, self.ghosts, self.wants_restart = server, False, False

    def detach(self) -> None:
        """From now on nothing is brought back."""
        self._server = 0

    def stop(self) -> None:
        self.detach()
        for task in self._tasks:
            task.cancel()

    @property
    def models(self) -> list[str]:
        """Those that generate, and drain by themselves."""
        return sorted({line.report.model for line in self.lines.values() if not line.report.whole})

    async def patrol(self) -> None:
        """Kill model processes that are frozen, or broken and done with telling so; their lines' end does the rest."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.25)
            now = time.monotonic()
            missed, last = now - last, now
            for line in list(self.lines.values()):
                report = line.report
                if missed > 1:  # we were the ones who did not run: nobody is to blame for what we have not heard
                    line.heard += missed
                if report.failure is not None and line.broken_since is None:
                    line.broken_since = now
                    self._say(f"{report.model} is broken: {report.failure}")
                told = line.broken_since is not None and (report.open == 0 or now - line.broken_since > FAREWELL)
                if told or now - line.heard > SILENCE:
                    kill(report.pid)

    async def until_it_answers(self, model: str) -> None:
        """Wait for a token. Raises NoAnswer when none comes in time."""
        until = time.monotonic() + ANSWER_TIMEOUT
        server = self._server
        while self._server == server:
            try:
                await asyncio.to_thread(self._http.generate, model, ANSWER_TIMEOUT)
                return
            except (TritonError, OSError) as error:
                if time.monotonic() > until:
                    raise NoAnswer(f"{model} does not answer: {error}") from error
            await asyncio.sleep(0.25)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One model's line, from its first report to its end."""
        line, server = None, self._server
        # What is not a report, or is cut off in the middle, ends the line as well.
        with contextlib.suppress(ValueError, TypeError, OSError):
            while data := await reader.readline():
                report = Report.parse(data)
                if line is None:
                    stub = next((s for s in stubs_of(server) if s.pid == report.pid), Stub(report.pid, None))
                    line = self.lines[report.pid] = Line(report, stub, writer, time.monotonic())
                line.report, line.heard = report, time.monotonic()
        writer.close()
        if line is not None:
            self.lines.pop(line.report.pid, None)
            if not line.report.leaving and server == self._server:
                task = asyncio.ensure_future(self._recover(line, server))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _recover(self, line: Line, server: int) -> None:
        """A model's process is dead: end the streams it left hanging and reload it, else take the server down."""
        name, whole, began = line.report.model, line.report.whole, time.monotonic()
        await asyncio.sleep(0.05)  # when the whole server went down that is known by now
        if server != self._server or name in self._recovering:
            return
        self._recovering.add(name)
        release(line.stub)
        how = f"{name} died" if whole else f"{name} died {'with requests open' if line.report.open else 'idle'}"
        try:
            if not await self.others(besides=name):
                self._restart(server, how)
                return
            self._say(f"{how}; loading it again")
            if line.report.open or whole:  # what Triton has handed to a dead process hangs, and more is handed over
                # Triton has nothing in flight for an engine that died: its end need not be hurried for it.
                self.ghosts = self.ghosts or not whole
                cut_connections(server, self._ports)
            await self._reload(name, whole)
            if server == self._server:
                self._say(f"{name} answers again after {time.monotonic() - began:.1f} s")
        except (OSError, TritonError, NoAnswer) as error:
            self._restart(server, f"{name} cannot be brought back alone ({error})")
        finally:
            self._recovering.discard(name)

    def _restart(self, server: int, why: str) -> None:
        if server == self._server:
            self.wants_restart = True
            kill(server)
            self._say(f"{why}; starting the server anew")

    async def others(self, besides: str = "") -> bool:
        """Whether models are loaded that do not report to us, or another than `besides` that does."""
        try:
            loaded = await asyncio.to_thread(self._http.models)
        except (OSError, TritonError):
            return False
        mine = set() if besides else set(self.models)
        return bool(set(loaded) - mine - {besides})

    async def _reload(self, name: str, whole: bool) -> None:
        for attempt in range(1, LOAD_TRIES + 1):
            try:
                await asyncio.to_thread(self._http.reload, name, LOAD_TIMEOUT)
                break
            except TritonError:
                if attempt == LOAD_TRIES:
                    raise
                await asyncio.sleep(attempt)
        if not whole:
            await self.until_it_answers(name)


async def first_of(*waits: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> None:
    """Until one of them is done. Futures are left as they are, coroutines that lost are cancelled."""
    futures = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future, wait in zip(futures, waits, strict=True):
        if future is not wait:
            future.cancel()
