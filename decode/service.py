"""A running engine for many threads: one thread steps, another turns tokens into text and hands it out.

The only file with locks. Must not know Triton, tensors or scheduling. Order of life: submit → outputs … → one last
output with `finish_reason` or `reject`; callbacks run on the sender thread, so a slow client never stalls a step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from decode.clock import WallClock
from decode.driver import Driver, Observer
from decode.engine import Engine, Stats
from decode.executors.base import Executor
from decode.plan import Cancel, Event, Finished, Input, Logprobs, Rejected, Started, Submit, TokenOut
from decode.stop_strings import StopStrings
from decode.text import Detokenizer, Tokenizer
from decode.types import FinishReason, RejectReason, Request, Usage

MAX_FAILURES = 3  # steps that raise in a row before the engine counts as broken


@dataclass(slots=True)
class Output:
    """What became known of a request since the last output. The last one has `finish_reason` or `reject` set.

    Latencies (ns, from submit) are set on the last output of a request that ran; `itl` holds the gaps between tokens.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs | None, ...] = ()
    finish_reason: FinishReason | None = None
    reject: RejectReason | None = None
    message: str = ""
    usage: Usage | None = None
    queue: int | None = None
    ttft: int | None = None
    e2e: int | None = None
    itl: tuple[int, ...] = ()

    @property
    def final(self) -> bool:
        return self.finish_reason is not None or self.reject is not None


OnOutput = Callable[[Output], None]


@dataclass(slots=True)
class _Stream:
    """One live request on the sender thread."""

    request: Request
    on_output: OnOutput
    submitted: int
    detokenizer: Detokenizer
    stops: StopStrings
    pending: Output = field(default_factory=Output)
    started: int | None = None
    times: list[int] = field(default_factory=list)
    cached: int = 0
    done: bool = False  # the last output is out; the engine may still have to hear of it


class _Inbox:
    """The driver's source: inputs from any thread."""

    def __init__(self) -> None:
        self._items: deque[Input] = deque()
        self._ready = threading.Condition()
        self._closed = False

    def put(self, item: Input) -> None:
        with self._ready:
            self._items.append(item)
            self._ready.notify()

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify()

    def due(self, now: int) -> Sequence[Input]:
        if not self._items:
            return ()
        with self._ready:
            items = tuple(self._items)
            self._items.clear()
        return items

    def wait(self) -> bool:
        with self._ready:
            self._ready.wait_for(lambda: self._items or self._closed)
            return bool(self._items)


class Service:
    """Serves requests with one engine. `failure` is None while it is healthy, else the reason in one line."""

    def __init__(
        self, engine: Engine, executor: Executor, tokenizer: Tokenizer, observer: Observer | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.failure: str | None = None
        self.busy_since: int | None = None  # monotonic ns at which the step in flight began
        self._engine = engine
        self._inbox = _Inbox()
        self._outbox: queue.SimpleQueue[Sequence[Event] | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()  # guards _streams, _closing
        self._closing = False
        self._driver = Driver(engine, executor, WallClock(), self._inbox, self, observer)
        self._stepper = threading.Thread(target=self._step_forever, name="gapless-step", daemon=True)
        self._sender = threading.Thread(target=self._send_forever, name="gapless-send", daemon=True)
        self._stepper.start()
        self._sender.start()

    @property
    def healthy(self) -> bool:
        return self.failure is None and self._stepper.is_alive() and self._sender.is_alive()

    def submit(self, request: Request, on_output: OnOutput) -> None:
        """Take a request; never blocks. `on_output` is called on the sender thread until its last output."""
        stream = _Stream(
            request,
            on_output,
            time.monotonic_ns(),
            Detokenizer(self.tokenizer),
            StopStrings(request.sampling.stop),
        )
        with self._lock:
            refusal = self._refusal(request.id)
            if refusal is None:
                self._streams[request.id] = stream
                self._inbox.put(Submit(request))
                return
        on_output(Output(reject=refusal[0], message=refusal[1]))

    def cancel(self, request_id: str) -> None:
        """The client does not want the rest. Pages are free before the next step is planned."""
        self._inbox.put(Cancel(request_id))

    def stats(self) -> Stats:
        """A snapshot; read between two steps or during one, so that counts may be a step apart from each other."""
        return self._engine.stats()

    def close(self, drain_timeout: float) -> None:
        """Refuse new requests, let what was accepted end within `drain_timeout` seconds, cancel the rest, stop."""
        with self._lock:
            self._closing = True
        until = time.monotonic() + drain_timeout
        while self._streams and self.healthy and time.monotonic() < until:
            time.sleep(0.01)
        for request_id in list(self._streams):
            self.cancel(request_id)
        self._inbox.close()
        self._stepper.join(timeout=30)
        self._outbox.put(None)
        self._sender.join(timeout=30)

    def emit(self, events: Sequence[Event]) -> None:
        """The driver's sink."""
        self._outbox.put(events)

    def _refusal(self, request_id: str) -> tuple[RejectReason, str] | None:
        if self.failure is not None:
            return RejectReason.UNHEALTHY, f"the engine is down ({self.failure}): retry when it is back"
        if self._closing:
            return RejectReason.SHUTTING_DOWN, "the server is shutting down: retry on another replica"
        if request_id in self._streams:
            return RejectReason.INVALID, f"request id: {request_id!r} is in use by a request that has not ended"
        return None

    def _step_forever(self) -> None:
        """The stepping thread. However it ends, nobody is left waiting."""
        try:
            while True:
                self.busy_since = time.monotonic_ns()
                stepped = self._driver.step()
                if self._driver.failures >= MAX_FAILURES:
                    raise RuntimeError(f"{MAX_FAILURES} steps in a row failed")
                if not stepped:
                    self.busy_since = None
                    if not self._inbox.wait():
                        return
        except BaseException as error:
            self.busy_since = None
            with self._lock:
                self.failure = f"{type(error).__name__}: {error}"
                lost = list(self._streams)
            now = time.monotonic_ns()
            usage = Usage(0, 0, 0)
            self.emit([Finished(name, FinishReason.ERROR, usage, now, self.failure) for name in lost])
            raise

    def _send_forever(self) -> None:
        """The sending thread: everything that has piled up goes out as one output per request."""
        while True:
            batch = self._outbox.get()
            touched: dict[str, _Stream] = {}
            while batch is not None:
                for event in batch:
                    self._take(event, touched)
                try:
                    batch = self._outbox.get_nowait()
                except queue.Empty:
                    break
            for stream in touched.values():
                self._deliver(stream)
            if batch is None:
                return

    def _take(self, event: Event, touched: dict[str, _Stream]) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None:
            return
        if not stream.done:
            touched[event.request_id] = stream
            _absorb(stream, event)
            if stream.pending.finish_reason is FinishReason.STOP and not isinstance(event, Finished):
                self._inbox.put(Cancel(event.request_id, FinishReason.STOP))
        if isinstance(event, (Finished, Rejected)):
            with self._lock:
                del self._streams[event.request_id]

    def _deliver(self, stream: _Stream) -> None:
        output, stream.pending = stream.pending, Output()
        stream.done = output.final
        if not output.final and not output.tokens:
            return
        try:
            stream.on_output(output)
        except Exception:  # one broken client must not end the others
            stream.done = True
            self.cancel(stream.request.id)


def _absorb(stream: _Stream, event: Event) -> None:
    """Add one event to what is pending for its request."""
    pending = stream.pending
    if pending.final:
        return
    match event:
        case Started(cached=cached, time=now):
            stream.started, stream.cached = now, cached
        case TokenOut():
            _absorb_token(stream, event)
        case Rejected(reason=reason, message=message):
            pending.reject, pending.message = reason, message
        case Finished(reason=reason, usage=usage, time=now, message=message):
            text = stream.stops.push(stream.detokenizer.flush())[0] + stream.stops.flush()
            pending.text += text
            _finish(stream, reason, usage, now, message)


def _absorb_token(stream: _Stream, event: TokenOut) -> None:
    pending = stream.pending
    stream.times.append(event.time)
    pending.tokens += (event.token,)
    if event.logprobs is not None:
        pending.logprobs += (event.logprobs,)
    if not event.visible:
        return
    text, stopped = stream.stops.push(stream.detokenizer.push(event.token))
    pending.text += text
    if stopped:
        usage = Usage(len(stream.request.prompt), stream.cached, event.number + 1)
        _finish(stream, FinishReason.STOP, usage, event.time, "")


def _finish(stream: _Stream, reason: FinishReason, usage: Usage, now: int, message: str) -> None:
    pending, times = stream.pending, stream.times
    pending.finish_reason, pending.usage, pending.message = reason, usage, message
    pending.e2e = now - stream.submitted
    if stream.started is not None:
        pending.queue = stream.started - stream.submitted
    if times:
        pending.ttft = times[0] - stream.submitted
        pending.itl = tuple(b - a for a, b in pairwise(times))
