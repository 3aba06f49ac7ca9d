"""A running engine for many threads: one thread steps, another turns tokens into text and hands it out.

The only file with locks. Must not know Triton, tensors or scheduling. Order of life: submit → outputs … → one last
output with `finish_reason` or `reject`; callbacks run on the sender thread, so a slow client never stalls a step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from decode.clock import WallClock
from decode.driver import Driver, Observer, Phases
from decode.engine import Engine, Stats
from decode.executors.base import Executor
from decode.plan import Cancel, Event, Finished, Input, Rejected, Submit
from decode.stream import OnOutput, Output, Stream
from decode.text import Tokenizer
from decode.types import FinishReason, RejectReason, Request, Usage

UNREAD = 10_000  # step times kept for one who asks for them
MAX_FAILURES = 3  # steps that raise in a row before the engine counts as broken
PATIENCE = 30.0  # seconds that closing gives each thread to end


class _Inbox:
    """The driver's source: inputs from any thread, each with the moment it came."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, Input]] = deque()
        self._ready = threading.Condition()
        self._closed = False

    def put(self, item: Input) -> None:
        with self._ready:
            self._items.append((time.monotonic_ns(), item))
            self._ready.notify()

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify()

    def due(self, now: int) -> Sequence[Input]:
        items: list[Input] = []
        if self._items:  # most steps take nothing, and need no lock to see that
            with self._ready:
                while self._items and self._items[0][0] <= now:
                    items.append(self._items.popleft()[1])
        return items

    def wait(self) -> bool:
        with self._ready:
            self._ready.wait_for(lambda: self._items or self._closed)
            return bool(self._items)


class Service:
    """Serves requests with one engine. `failure` is None while it is healthy, else the reason in one line.

    To the engine every request has a name of its own, so that an id can be used again as soon as its last output is
    out, and nothing said about a request can reach its successor.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        tokenizer: Tokenizer,
        observer: Observer | None = None,
        phases: Phases | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.failure: str | None = None
        self.config = engine.config
        self.tiers = engine.config.tiers
        self.most_prompt = engine.config.max_model_len - 1  # tokens
        self.busy_since: int | None = None  # monotonic ns at which the step in flight began
        self.step_parts = executor.profile  # seconds so far, by part of a step
        self._engine = engine
        self._step_times: deque[int] = deque(maxlen=UNREAD)
        self._inbox = _Inbox()
        self._outbox: queue.SimpleQueue[Sequence[Event] | None] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}  # by the engine's name, until the engine has ended it
        self._open: dict[str, Stream] = {}  # by the client's id, until its last output
        self._numbers = count()
        self._lock = threading.Lock()  # guards changes of _streams, _open, _closing and failure
        self._closing = False
        self._driver = Driver(engine, executor, WallClock(), self._inbox, self, observer, phases)
        self._stepper = threading.Thread(target=self._step_forever, name="gapless-step", daemon=True)
        self._sender = threading.Thread(target=self._send_forever, name="gapless-send", daemon=True)
        self._stepper.start()
        self._sender.start()

    @property
    def healthy(self) -> bool:
        return self.failure is None and self._stepper.is_alive() and self._sender.is_alive()

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Take a request; never blocks. `on_output` is called on the sender thread until its last output.

        A refusal that needs no engine comes at once, on the caller's thread.
        """
        name = f"{request.id}#{next(self._numbers)}"
        stream = Stream(name, request, on_output, self.tokenizer, time.monotonic_ns())
        with self._lock:
            if (refusal := self._refusal(request.id)) is None:
                self._streams[name] = self._open[request.id] = stream
                self._inbox.put(Submit(replace(request, id=name)))
                return
        on_output(Output(reject=refusal[0], message=refusal[1]))

    def cancel(self, request_id: str) -> None:
        """The client does not want the rest. Pages are free before the next step is planned."""
        stream = self._open.get(request_id)
        if stream is not None:
            self._inbox.put(Cancel(stream.name))

    def stats(self) -> Stats:
        """A snapshot; read between two steps or during one, so that counts may be a step apart from each other."""
        return self._engine.stats()

    def take_step_times(self) -> list[int]:
        """How long each step took since this was last asked, ns; of the last UNREAD ones."""
        return [self._step_times.popleft() for _ in range(len(self._step_times))]

    def close(self, drain_timeout: float) -> None:
        """Refuse new requests, let what was accepted end within `drain_timeout` seconds, cancel the rest, stop."""
        with self._lock:
            self._closing = True
        until = time.monotonic() + drain_timeout
        while self._streams and self.healthy and time.monotonic() < until:
            time.sleep(0.01)
        for name in list(self._streams):
            self._inbox.put(Cancel(name))
        self._inbox.close()
        self._stepper.join(timeout=PATIENCE)
        self._end_all(FinishReason.CANCELLED, "a step hung while the service was closed")
        self._outbox.put(None)
        self._sender.join(timeout=PATIENCE)

    def emit(self, events: Sequence[Event]) -> None:
        """The driver's sink."""
        self._outbox.put(events)

    def _refusal(self, request_id: str) -> tuple[RejectReason, str] | None:
        if self.failure is not None:
            return RejectReason.UNHEALTHY, f"the engine is down ({self.failure}): retry when it is back"
        if self._closing:
            return RejectReason.SHUTTING_DOWN, "the server is shutting down: retry on another replica"
        if request_id in self._open:
            return RejectReason.INVALID, f"request id: {request_id!r} is in use by a request that has not ended"
        return None

    def _step_forever(self) -> None:
        """The stepping thread. However it ends, nobody is left waiting."""
        try:
            while self.failure is None:
                self.busy_since = began = time.monotonic_ns()
                stepped = self._driver.step()
                if self._driver.failures >= MAX_FAILURES:
                    raise RuntimeError(f"{MAX_FAILURES} steps in a row failed")
                if stepped:
                    self._step_times.append(time.monotonic_ns() - began)
                else:
                    self.busy_since = None
                    if not self._inbox.wait():
                        return
        except BaseException as error:
            self._end_all(FinishReason.ERROR, self._break(error))
            raise
        finally:
            self.busy_since = None

    def _break(self, error: BaseException) -> str:
        """From now on every request is refused; returns why. Those let in before are in _streams by then."""
        with self._lock:
            failure = self.failure = self.failure or f"{type(error).__name__}: {error}"
        return failure

    def _end_all(self, reason: FinishReason, message: str) -> None:
        """For what the engine cannot end any more. Its own ends, if any, are on their way already and come first."""
        now = time.monotonic_ns()
        self.emit([Finished(name, reason, Usage(0, 0, 0), now, message) for name in list(self._streams)])

    def _send_forever(self) -> None:
        """The sending thread. Without it no text can leave, so its end is the end of the service."""
        try:
            self._send_until_closed()
        except BaseException as error:
            failure, now = self._break(error), time.monotonic_ns()
            self._inbox.close()
            for stream in list(self._open.values()):
                stream.end(FinishReason.ERROR, now, failure)
                self._deliver(stream)
            raise

    def _send_until_closed(self) -> None:
        """Everything that has piled up goes out as one output per request."""
        batch: Sequence[Event] | None = ()
        while batch is not None:
            batch = self._outbox.get()
            touched: dict[str, Stream] = {}
            while batch is not None:
                for event in batch:
                    self._take(event, touched)
                try:
                    batch = self._outbox.get_nowait()
                except queue.Empty:
                    break
            for stream in touched.values():
                self._deliver(stream)

    def _take(self, event: Event, touched: dict[str, Stream]) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None:
            return
        last = isinstance(event, (Finished, Rejected))
        if not stream.ended:
            touched[stream.name] = stream
            stream.absorb(event)
            if stream.ended and not last:
                self._inbox.put(Cancel(stream.name, FinishReason.STOP))
        if last:
            with self._lock:
                del self._streams[stream.name]

    def _deliver(self, stream: Stream) -> None:
        output = stream.take()
        if output is None:
            return
        if output.final:
            self._free_id(stream)
        try:
            stream.on_output(output)
        except BaseException:  # whatever a client raises, it must not end the others
            if not output.final:
                stream.abandon()
                self._free_id(stream)
                self._inbox.put(Cancel(stream.name))

    def _free_id(self, stream: Stream) -> None:
        with self._lock:
            del self._open[stream.request.id]
