"""One connection to a server and all that is in flight over it, on an event loop and a thread of its own.

All requests share them: what a client costs for each message is taken from the cores it shares with the server it
measures. Must not know schedules, targets or locust.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tritonclient.grpc.aio as triton_aio

from loadtest.answer import Answer
from loadtest.samples import Planned, Sample
from loadtest.stream import once, receive
from loadtest.unary import Inputs, ask

LAG_PERIOD = 10_000_000  # ns between looks at the event loop

OnEnd = Callable[[Sample], None]


class Connection:
    """Requests to the models of one server. `lags` says how late the event loop was, in ns.

    `clock` gives ns since the run began; `inputs` makes those of each model that answers in one piece.
    """

    def __init__(self, url: str, inputs: Mapping[str, Inputs], clock: Callable[[], int]) -> None:
        self.lags: list[int] = []
        self._inputs = inputs
        self._clock = clock
        self._open: dict[asyncio.Task[None], tuple[Answer, Callable[[], object]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="connection", daemon=True)
        self._thread.start()
        self._client = self._call(self._connect(url))

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def send(self, request: Planned, intended: int, on_end: OnEnd) -> None:
        """Send now. `on_end` gets the sample on the thread of the connection, whatever the server does."""
        self._loop.call_soon_threadsafe(self._start, request, intended, on_end)

    def watch_lag(self) -> None:
        """From now on note how late the loop is for each tick of a grid: what it may add to any time measured here.

        A long stall is late for every tick in it; one late wake-up alone would vanish below the 99th percentile.
        """
        self._loop.call_soon_threadsafe(self._tick, self._clock() + LAG_PERIOD)

    def abandon(self, why: str) -> None:
        """End whatever is in flight as failed; the server sees it cancelled."""
        self._loop.call_soon_threadsafe(self._abandon, why)

    def close(self) -> None:
        """End everything, the connection too."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self, url: str) -> triton_aio.InferenceServerClient:
        return triton_aio.InferenceServerClient(url)

    async def _close(self) -> None:
        self._abandon("closed")
        if self._open:
            await asyncio.wait(list(self._open))
        await self._client.close()

    def _tick(self, due: int) -> None:
        woken = self._clock()
        while due <= woken:
            self.lags.append(woken - due)
            due += LAG_PERIOD
        self._loop.call_later(max(0, due - self._clock()) / 1e9, self._tick, due)

    def _abandon(self, why: str) -> None:
        for answer, cancel in self._open.values():
            answer.fail(self._clock(), "failed", why)
            cancel()

    def _start(self, request: Planned, intended: int, on_end: OnEnd) -> None:
        answer = Answer(self._clock())
        if request.max_tokens:
            responses = self._client.stream_infer(once(request))
            task = self._loop.create_task(receive(answer, responses, self._clock))
            self._open[task] = answer, responses.cancel
        else:
            inputs = self._inputs[request.model](request)
            task = self._loop.create_task(ask(self._client, inputs, request, answer, self._clock))
            self._open[task] = answer, task.cancel
        task.add_done_callback(lambda _: self._end(task, answer, request, intended, on_end))

    def _end(self, task: asyncio.Task[None], answer: Answer, request: Planned, intended: int, on_end: OnEnd) -> None:
        del self._open[task]
        if not task.cancelled() and (defect := task.exception()) is not None:
            answer.fail(self._clock(), "failed", repr(defect))
        on_end(answer.sample(request, intended))
