"""Between clients and a service: every request taken ends in exactly one final answer, whatever happens to it.

Owns the requests that are open. Must not know Triton: a Client is anything that can be answered and may go away.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from decode.plan import Logprobs
from decode.protocol import Call, RawRequest, parse
from decode.service import Service
from decode.stream import Output
from decode.types import MAX_SEED, FinishReason, InvalidRequest, RejectReason, Request, SamplingParams, Usage

STUCK = 60 * 10**9  # ns after which a step that has not returned counts as broken


class Fault(StrEnum):
    """Kinds of error a client can be told."""

    INVALID = "invalid"
    UNAVAILABLE = "unavailable"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


FAULTS = {
    RejectReason.INVALID: Fault.INVALID,
    RejectReason.CANCELLED: Fault.CANCELLED,
    FinishReason.CANCELLED: Fault.CANCELLED,
    FinishReason.ERROR: Fault.INTERNAL,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A piece of an answer, or all of it. The last piece has `reason` and `usage`.

    Any other piece is one token, or says by `usage` (all tokens so far) that it is more.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    reason: str | None = None
    usage: Usage | None = None


class Client(Protocol):
    """Who asked. Methods are called from one thread at a time."""

    def answer(self, answer: Answer) -> None: ...

    def fail(self, fault: Fault, message: str) -> None:
        """The one and last answer, or the end of a stream."""
        ...

    def is_cancelled(self) -> bool: ...


Observe = Callable[[str, Output], None]  # tier and last output of a request


class _Open:
    """One request in flight."""

    __slots__ = ("call", "client", "done", "lock", "pieces", "tier")

    def __init__(self, call: Call, client: Client, tier: str) -> None:
        self.call, self.client, self.tier = call, client, tier
        self.pieces: list[Output] = []
        self.done = False
        self.lock = threading.Lock()


class Frontend:
    """Takes raw requests, answers clients, watches for those that leave. Thread-safe."""

    def __init__(self, service: Service, default_tier: str, observe: Observe) -> None:
        self._service = service
        self._default_tier = default_tier
        self._observe = observe
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self._draining = False

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def failure(self) -> str | None:
        """Why the service is broken, or None; a service that was told to stop is not."""
        service = self._service
        if self._draining:
            return None
        if service.failure is not None:
            return service.failure
        if not service.healthy:
            return "a thread of the engine died"
        since = service.busy_since
        if since is not None and time.monotonic_ns() - since > STUCK:
            return f"a step has not returned for {STUCK // 10**9} s"
        return None

    def take(self, request_id: str, raw: RawRequest, client: Client) -> None:
        """Start a request; its client hears of everything, wrong input included. Never blocks, never raises."""
        request_id = request_id or secrets.token_hex(8)
        tier = self._default_tier
        try:
            call = parse(raw)
            tier = tier if call.tier is None else call.tier
            request = Request(request_id, self._tokens(call), _seeded(call), tier)
        except InvalidRequest as error:
            self._refuse(tier, RejectReason.INVALID, str(error), client)
            return
        except Exception as error:  # a defect of ours, which must not leave the client without an answer
            client.fail(Fault.INTERNAL, f"{type(error).__name__}: {error}")
            return
        failure = self.failure
        entry = _Open(call, client, tier)
        with self._lock:
            twice = request_id in self._open
            if not twice and failure is None:
                self._open[request_id] = entry
        if failure is not None:
            self._refuse(tier, RejectReason.UNHEALTHY, f"the engine is down ({failure}): retry when it is back", client)
        elif twice:
            text = f"request id: {request_id!r} is in use by a request that has not ended"
            self._refuse(tier, RejectReason.INVALID, text, client)
        else:
            self._service.submit(request, lambda output: self._output(request_id, entry, output))

    def refuse(self, client: Client, message: str) -> None:
        """Answer a request that could not even be read."""
        self._refuse(self._default_tier, RejectReason.INVALID, message, client)

    def cancel_left(self) -> int:
        """Ask every open request's client whether it is still there, cancel where not; how many were asked."""
        asked = list(self._open.items())
        for request_id, entry in asked:
            with entry.lock:  # never while the last answer is on its way: Triton frees what is asked with it, and dies
                left = not entry.done and entry.client.is_cancelled()
            if left:
                self._service.cancel(request_id)
        return len(asked)

    def fail_all(self, message: str) -> None:
        """End every open request with an error, without the service's help."""
        for request_id, entry in list(self._open.items()):
            self._output(request_id, entry, Output(finish_reason=FinishReason.ERROR, message=message))

    def drain(self, seconds: float) -> None:
        """Refuse new requests, let open ones end within `seconds`, then end the rest. Returns when none is open."""
        self._draining = True
        self._service.close(seconds)
        self.fail_all("the server shut down before the answer was complete")

    def _tokens(self, call: Call) -> tuple[int, ...]:
        if call.tokens is not None:
            return call.tokens
        if call.messages is not None:
            return self._service.tokenizer.encode_chat(call.messages, self._service.most_prompt)
        assert call.text is not None
        return self._service.tokenizer.encode(call.text, self._service.most_prompt)

    def _refuse(self, tier: str, reason: RejectReason, message: str, client: Client) -> None:
        self._observe(tier, Output(reject=reason, message=message))
        client.fail(FAULTS.get(reason, Fault.UNAVAILABLE), message)

    def _output(self, request_id: str, entry: _Open, output: Output) -> None:
        """One output of the service; on its sender thread, or on ours when the service is broken."""
        with entry.lock:
            if entry.done:
                return
            entry.done = output.final
            try:
                self._reply(entry, output)
            finally:
                if output.final:
                    with self._lock:
                        self._open.pop(request_id, None)
                    self._observe(entry.tier, output)

    def _reply(self, entry: _Open, output: Output) -> None:
        if output.reject is not None:
            entry.client.fail(FAULTS.get(output.reject, Fault.UNAVAILABLE), output.message)
            return
        if output.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            fault, message = FAULTS[output.finish_reason], output.message or "cancelled"
            if self._draining:
                fault, message = Fault.UNAVAILABLE, "the server shut down before the answer was complete"
            entry.client.fail(fault, message)
            return
        if entry.call.stream:
            entry.client.answer(_answer(entry.call.echo, [output]))
            return
        entry.pieces.append(output)
        if output.final:
            entry.client.answer(_answer(entry.call.echo, entry.pieces))


def _answer(echo: str, pieces: list[Output]) -> Answer:
    last = pieces[-1]
    return Answer(
        text=echo + "".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        logprobs=tuple(value for piece in pieces for value in piece.logprobs),
        reason=last.finish_reason,
        usage=last.usage if last.final or len(last.tokens) != 1 else None,
    )


def _seeded(call: Call) -> SamplingParams:
    """The core draws nothing itself: a request without a seed gets one here."""
    sampling = call.sampling
    return sampling if sampling.seed is not None else dataclasses.replace(sampling, seed=secrets.randbelow(MAX_SEED))
