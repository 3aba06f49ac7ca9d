"""What crosses the seam between the core and an executor: plans, results, inputs, events. All immutable.

One step = one StepPlan executed into one StepResult. Within a step an executor must, in this order:
1. do `copies` (in order), 2. per layer write the KV of *all* tokens of *all* chunks, then run attention. That order is
a promise the core relies on: a chunk may read pages that another chunk of the same step fills.
"""

from __future__ import annotations

from typing import NamedTuple

from decode.types import FinishReason, RejectReason, Request, SamplingParams, Usage


class Draw(NamedTuple):
    """How to sample the token that follows a chunk.

    `position` is the number of tokens before the drawn one (prompt + output so far); the draw may depend on
    (params.seed, position) and the logits only, so batching, chunking and preemption cannot change it.
    `banned` are ids that must not be drawn (end-of-sequence and stop ids before min_tokens).
    `prompt` and `output` are the tokens so far, given only when `params.penalized`, else empty.
    """

    params: SamplingParams
    position: int
    banned: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


class Chunk(NamedTuple):
    """Tokens of one sequence in one step: positions [start, start + len(tokens)), KV in `pages`.

    Token at position p lives in page pages[p // page_size] at offset p % page_size. Positions [0, start) are already
    there (or are filled by another chunk of this very step). `draw` is None while a prompt is not yet whole.
    """

    seq: int  # sequence number, unique per engine
    tokens: tuple[int, ...]
    start: int
    pages: tuple[int, ...]
    draw: Draw | None


class Copy(NamedTuple):
    """Copy the first `tokens` slots of page `src` to page `dst`, all layers, K and V."""

    src: int
    dst: int
    tokens: int


class Swap(NamedTuple):
    """Copy all of `page` out to `slot` of the host pool, or in from there."""

    page: int
    slot: int
    out: bool


class StepPlan(NamedTuple):
    """One step. Decoding sequences come first, one token each; then prompts, whose chunks may be that short, too."""

    step: int
    chunks: tuple[Chunk, ...]
    copies: tuple[Copy | Swap, ...] = ()  # their order counts: a page may be read by one and written by the next

    @property
    def num_tokens(self) -> int:
        return sum(len(c.tokens) for c in self.chunks)


class Logprobs(NamedTuple):
    """Log-probability of the drawn token, and of the best ones as (token, logprob), best first.

    Taken after penalties and before temperature and truncation.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


class StepResult(NamedTuple):
    """`tokens[i]` is what was drawn for `plan.chunks[i]`, None where no draw was asked. `elapsed` in nanoseconds."""

    tokens: tuple[int | None, ...]
    elapsed: int
    logprobs: tuple[Logprobs | None, ...] = ()  # empty when no chunk asked for them


class Submit(NamedTuple):
    """Input: a request arrived."""

    request: Request


class Cancel(NamedTuple):
    """Input: end a request early. `reason` STOP is a stop string seen in its text; CANCELLED a client that left."""

    request_id: str
    reason: FinishReason = FinishReason.CANCELLED


Input = Submit | Cancel


class Started(NamedTuple):
    """Event: a request left the queue for the first time; `cached` of its prompt tokens need no computing."""

    request_id: str
    cached: int
    time: int


class TokenOut(NamedTuple):
    """Event: output token number `number` (from 0) of a request.

    `visible` is False for the end-of-sequence or stop token that ends it: no text belongs to that one.
    """

    request_id: str
    token: int
    number: int
    time: int
    visible: bool = True
    logprobs: Logprobs | None = None


class Finished(NamedTuple):
    """Terminal event of an accepted request."""

    request_id: str
    reason: FinishReason
    usage: Usage
    time: int
    message: str = ""


class Rejected(NamedTuple):
    """Terminal event of a request that never ran. `message` says what to do."""

    request_id: str
    reason: RejectReason
    message: str
    time: int


Event = Started | TokenOut | Finished | Rejected
