"""What came of one request: tokens of its messages, its end, its outcome. Must not know sockets or event loops."""

from __future__ import annotations

import json

from tritonclient.grpc import service_pb2

from loadtest.samples import Outcome, Planned, Sample


class Answer:
    """What has arrived of one answer so far. `sent` in ns since the run began, as all times here."""

    def __init__(self, sent: int) -> None:
        self.outcome: Outcome | None = None  # None: it goes on
        self.begun = False  # a message with tokens has come
        self._sent = sent
        self._end: int | None = None
        self._messages: list[tuple[int, int]] = []
        self._tokens = 0
        self._usage: dict[str, int] = {}
        self._finish_reason = ""
        self._error = ""

    def take(self, now: int, response: service_pb2.ModelInferResponse) -> None:
        """Tokens of a message: one, unless it carries `usage`, which tells how many have come in all.

        A server that tells usage only at the end, and put several tokens into an earlier message, has them counted to
        its last message. A message without text still holds a token: half a character.
        """
        texts = _texts(response)
        usage = texts.get("usage")
        self._finish_reason = texts.get("finish_reason") or self._finish_reason
        if usage:
            self._usage = json.loads(usage)
            tokens = self._usage["output_tokens"] - self._tokens
        else:
            tokens = 1 if "text_output" in texts else 0
        if tokens > 0:
            self._messages.append((now, tokens))
            self._tokens += tokens
            self.begun = True
        if self._finish_reason and self._end is None:
            self._end = now

    def finish(self, now: int) -> None:
        """The stream is at its end; that time counts when no message told the reason."""
        if self.outcome is not None:
            return
        self._end = self._end if self._end is not None else now
        good = self._finish_reason not in ("cancelled", "error") and self._tokens > 0
        self.outcome = "ok" if good else "failed"
        if not good:
            self._error = f"ended with finish_reason '{self._finish_reason}' after {self._tokens} tokens"

    def arrive(self, now: int) -> None:
        """The whole answer is there, in one piece."""
        if self.outcome is None:
            self.outcome, self._end = "ok", now

    def fail(self, now: int, outcome: Outcome, why: str) -> None:
        """Refused before it began, or failed. The first end counts."""
        if self.outcome is not None:
            return
        self.outcome, self._end = outcome, now
        self._error = " ".join(why.split())

    def sample(self, request: Planned, intended: int) -> Sample:
        return Sample(
            id=request.id,
            model=request.model,
            tier=request.tier,
            intended=intended,
            sent=self._sent,
            first=self._messages[0][0] if self._messages else None,
            end=self._end,
            messages=tuple(self._messages),
            outcome=self.outcome or "failed",
            error=self._error,
            finish_reason=self._finish_reason,
            asked=request.max_tokens,
            prompt_tokens=self._usage.get("prompt_tokens", 0),
            cached_tokens=self._usage.get("cached_tokens", 0),
            output_tokens=self._tokens,
        )


def _texts(response: service_pb2.ModelInferResponse) -> dict[str, str]:
    """The outputs of a message, each one string: four bytes of length, then the string, which is Triton's BYTES form.

    Read from the message itself: the client shares its cores with the server it measures, and the way through numpy
    arrays costs it several times as much for every token.
    """
    raw = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: data[4:].decode("utf-8", "replace") for output, data in raw if len(data) >= 4}
