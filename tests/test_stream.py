"""One request's text side, fed by hand: what its client is told, when, and with which numbers."""

from __future__ import annotations

from typing import Any

import pytest

from decode.detokenizer import Decoding, Piece
from decode.plan import Finished, Logprobs, Rejected, Started, TokenOut
from decode.stream import Output, Stream
from decode.types import FinishReason, RejectReason, Request, SamplingParams, Usage


class Bytes:
    """A tokenizer whose tokens are bytes."""

    decoding = Decoding(byte_level=True)

    def piece(self, token: int) -> Piece:
        return bytes([token])


def stream(**sampling: Any) -> Stream:
    request = Request("a", (1, 2, 3), SamplingParams(max_tokens=99, seed=0, **sampling))
    return Stream("a#0", request, lambda output: None, Bytes(), submitted=100)  # type: ignore[arg-type]


def say(to: Stream, text: str, begin: int = 200, gap: int = 10) -> None:
    for number, byte in enumerate(text.encode()):
        to.absorb(TokenOut("a#0", byte, number, begin + number * gap))


def finish(to: Stream, reason: FinishReason = FinishReason.LENGTH, now: int = 500, message: str = "") -> Output:
    to.absorb(Finished("a#0", reason, Usage(3, 2, 5, preemptions=4), now, message))
    output = to.take()
    assert output is not None and output.final
    return output


def test_outputs_hold_what_is_new_and_the_last_one_how_it_went() -> None:
    s = stream()
    assert s.take() is None
    s.absorb(Started("a#0", 2, 150))
    assert s.take() is None  # nothing a client could see
    say(s, "abc")
    assert s.take() == Output(text="abc", tokens=(97, 98, 99), usage=Usage(3, 2, 3))  # what it has cost so far
    assert s.take() is None and not s.ended
    say(s, "de", begin=300)
    assert finish(s, now=320) == Output(
        text="de",
        tokens=(100, 101),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(3, 2, 5, preemptions=4),
        queue=50,
        ttft=100,
        e2e=220,
        itl=(10, 10, 80, 10),
    )
    assert s.ended and s.take() is None


def test_what_never_ran_has_no_latencies() -> None:
    s = stream()
    s.absorb(Rejected("a#0", RejectReason.QUEUE_TIMEOUT, "too late", 300))
    assert s.take() == Output(reject=RejectReason.QUEUE_TIMEOUT, message="too late") and s.take() is None
    ended = finish(stream(), FinishReason.ERROR, message="it broke")
    assert ended == Output(
        finish_reason=FinishReason.ERROR, message="it broke", usage=Usage(3, 0, 0, preemptions=4), e2e=400
    )


def test_a_token_without_text_is_told_and_counted() -> None:
    s = stream()
    say(s, "ab")
    s.absorb(TokenOut("a#0", 0, 2, 220, visible=False))
    output = finish(s, FinishReason.STOP)
    assert (output.text, output.tokens) == ("ab", (97, 98, 0))
    assert output.usage is not None and output.usage.output_tokens == 3
    s = stream()
    s.absorb(TokenOut("a#0", "é".encode()[0], 0, 200))  # half a character
    assert s.take() == Output(tokens=(0xC3,), usage=Usage(3, 0, 1))
    assert finish(s).text == "\ufffd"


def test_logprobs_go_with_their_tokens() -> None:
    s, some = stream(), [Logprobs(-0.5, ((97, -0.5),)), Logprobs(-1.5, ())]
    s.absorb(TokenOut("a#0", 97, 0, 200, logprobs=some[0]))
    first = s.take()
    s.absorb(TokenOut("a#0", 98, 1, 210, logprobs=some[1]))
    assert first is not None and first.logprobs == (some[0],) and finish(s).logprobs == (some[1],)
    s = stream()
    say(s, "a")
    assert finish(s).logprobs == ()


def test_nothing_counts_after_a_stop_string() -> None:
    s = stream(stop=("cd",))
    s.absorb(Started("a#0", 1, 150))
    say(s, "abcdef")
    assert s.ended
    s.absorb(Started("a#0", 0, 999))
    s.absorb(Finished("a#0", FinishReason.CANCELLED, Usage(3, 0, 9), 999))
    s.end(FinishReason.ERROR, 999, "late")
    output = s.take()
    assert output == Output(
        text="ab",
        tokens=(97, 98, 99, 100),
        finish_reason=FinishReason.STOP,
        usage=Usage(3, 1, 4),
        queue=50,
        ttft=100,
        e2e=130,
        itl=(10, 10, 10),
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (FinishReason.LENGTH, FinishReason.STOP),
        (FinishReason.STOP, FinishReason.STOP),
        (FinishReason.CANCELLED, FinishReason.CANCELLED),
        (FinishReason.ERROR, FinishReason.ERROR),
    ],
)
def test_a_stop_string_in_held_text_changes_only_an_end_by_length(reason: FinishReason, told: FinishReason) -> None:
    s = stream(stop=("©",))  # could become an emoji, so it is held back
    say(s, "ab©")
    assert not s.ended
    output = finish(s, reason)
    assert (output.text, output.finish_reason) == ("ab", told)


def test_text_held_for_a_stop_string_that_does_not_come_is_told_at_the_end() -> None:
    s = stream(stop=("bcd",))
    say(s, "abc")
    first = s.take()
    assert first is not None and first.text == "a" and finish(s).text == "bc"


def test_an_abandoned_client_is_told_nothing() -> None:
    s = stream()
    say(s, "ab")
    s.abandon()
    assert s.ended and s.take() is None
    s.end(FinishReason.ERROR, 300, "broken")
    assert s.take() is None
