"""One connection to a server and all that is in flight over it, on an event loop and a thread of its own.

All requests share them: what a client costs for each message is taken from the cores it shares with the server it
measures. Must not know schedules, targets or locust.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import grpc
from tritonclient.grpc import service_pb2_grpc

from loadtest.answer import Answer
from loadtest.samples import Planned, Sample
from loadtest.stream import once, receive
from loadtest.unary import Inputs, ask
from loadtest.wire import request as message

LAG_PERIOD = 10_000_000  # ns between looks at the event loop
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

OnEnd = Callable[[Sample], None]
Found = TypeVar("Found")


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
        self._channel = self._call(_connect(url))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def send(self, request: Planned, intended: int, on_end: OnEnd) -> None:
        """Send when it is `intended`, or now. `on_end` gets the sample, whatever the server does.

        It is called on the thread of the connection.
        """
        self._loop.call_soon_threadsafe(self._await, request, intended, on_end)

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

    def _call(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self) -> None:
        self._abandon("closed")
        if self._open:
            await asyncio.wait(list(self._open))
        await self._channel.close()

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

    def _await(self, request: Planned, intended: int, on_end: OnEnd) -> None:
        if (early := intended - self._clock()) > 0:
            self._loop.call_later(early / 1e9, self._start, request, intended, on_end)
        else:
            self._start(request, intended, on_end)

    def _start(self, request: Planned, intended: int, on_end: OnEnd) -> None:
        answer = Answer(self._clock())
        if request.max_tokens:
            responses = self._stub.ModelStreamInfer(once(request))
            task = self._loop.create_task(receive(answer, responses, self._clock))
            self._open[task] = answer, responses.cancel
        else:
            asked = message(request, self._inputs[request.model](request))
            task = self._loop.create_task(ask(self._stub.ModelInfer, self._channel, asked, answer, self._clock))
            self._open[task] = answer, task.cancel
        task.add_done_callback(lambda _: self._end(task, answer, request, intended, on_end))

    def _end(self, task: asyncio.Task[None], answer: Answer, request: Planned, intended: int, on_end: OnEnd) -> None:
        del self._open[task]
        if not task.cancelled() and (defect := task.exception()) is not None:
            answer.fail(self._clock(), "failed", repr(defect))
        on_end(answer.sample(request, intended))


async def _connect(url: str) -> grpc.aio.Channel:
    """A channel belongs to the loop on which it is made."""
    return grpc.aio.insecure_channel(url, options=ANY_SIZE)
