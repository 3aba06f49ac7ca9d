"""The text side of one request: events of the engine in, outputs for its client out.

Owns what the client has not been told yet. Must not know threads, queues or how tokens are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from decode.detokenizer import Detokenizer
from decode.plan import Event, Finished, Logprobs, Rejected, Started, TokenOut
from decode.stop_strings import StopStrings
from decode.text import Tokenizer
from decode.types import FinishReason, RejectReason, Request, Usage


@dataclass(slots=True)
class Output:
    """What became known of a request since the last output. The last one has `finish_reason` or `reject` set.

    `usage` counts what was drawn so far. Latencies (ns, from submit) are set on the last output of a request that ran;
    `itl` holds the gaps between tokens.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
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
class _Pending:
    """What the next output will hold; lists, as it may pile up for long."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)


class Stream:
    """One live request; `name` is the engine's for it. Used by one thread at a time."""

    def __init__(self, name: str, request: Request, on_output: OnOutput, tokenizer: Tokenizer, submitted: int) -> None:
        self.name = name
        self.request = request
        self.on_output = on_output
        self._submitted = submitted
        self._detokenizer = Detokenizer(tokenizer, continues=True)  # of the prompt
        self._stops = StopStrings(request.sampling.stop)
        self._pending = _Pending()
        self._last: Output | None = None
        self._told = False  # nothing more is for the client
        self._started: int | None = None
        self._times: list[int] = []
        self._cached = 0

    @property
    def ended(self) -> bool:
        """Whether no event can change anything any more; the engine may still have to hear of it."""
        return self._told or self._last is not None

    def absorb(self, event: Event) -> None:
        """Take one event of this request; nothing counts after its end, which a stop string may bring early."""
        if self.ended:
            return
        match event:
            case Started(cached=cached, time=now):
                self._started, self._cached = now, cached
            case TokenOut():
                self._token(event)
            case Rejected(reason=reason, message=message):
                self._last = Output(reject=reason, message=message)
            case Finished(reason=reason, usage=usage, time=now, message=message):
                text, stopped = self._stops.push(self._detokenizer.flush())
                self._pending.text += (text, self._stops.flush())
                if stopped and reason is FinishReason.LENGTH:
                    reason = FinishReason.STOP
                self.end(reason, now, message, usage.preemptions)

    def end(self, reason: FinishReason, now: int, message: str = "", preemptions: int = 0) -> None:
        """Make the next output the last one; the first end counts."""
        if self.ended:
            return
        last = Output(finish_reason=reason, usage=self._usage(preemptions), message=message, e2e=now - self._submitted)
        if self._started is not None:
            last.queue = self._started - self._submitted
        if self._times:
            last.ttft = self._times[0] - self._submitted
            last.itl = tuple(b - a for a, b in pairwise(self._times))
        self._last = last

    def abandon(self) -> None:
        """The client cannot be told anything any more."""
        self._told = True

    def take(self) -> Output | None:
        """What is new since the last call, None when that is nothing a client could see."""
        pending = self._pending
        if self._told or (self._last is None and not pending.tokens):
            return None
        output, self._pending = self._last or Output(usage=self._usage()), _Pending()
        output.text = "".join(pending.text)
        output.tokens, output.logprobs = tuple(pending.tokens), tuple(pending.logprobs)
        self._told = output.final
        return output

    def _usage(self, preemptions: int = 0) -> Usage:
        return Usage(len(self.request.prompt), self._cached, len(self._times), preemptions)

    def _token(self, event: TokenOut) -> None:
        self._times.append(event.time)
        self._pending.tokens.append(event.token)
        if event.logprobs is not None:
            self._pending.logprobs.append(event.logprobs)
        if not event.visible:
            return
        text, stopped = self._stops.push(self._detokenizer.push(event.token))
        self._pending.text.append(text)
        if stopped:
            self.end(FinishReason.STOP, event.time)
