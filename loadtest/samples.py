"""Raw samples: what happened to each request, to the token, as one JSON line each. Nothing is rounded or dropped.

Must not know clocks, sockets or targets. All times are integer nanoseconds since the run began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

Outcome = Literal["ok", "rejected", "failed"]
Time = Annotated[int, Field(strict=True, ge=0, le=10**17)]  # ns; some years
Count = Annotated[int, Field(ge=0, le=10**6)]  # of tokens of one request

POOL = 32  # pictures, or sets of arrays, that a run sends again and again


@dataclass(frozen=True, slots=True)
class Planned:
    """A request as the schedule has it: when it should be sent, to which model, and what it asks for.

    An LLM is asked for `max_tokens` after `system` and `text`, or after `ids`. A model that answers in one piece is
    asked for no tokens, and gets `text`, or the picture or arrays number `item` of a pool of POOL that the load
    generator makes before the run: so the plan stays small.
    """

    id: str
    model: str
    tier: str
    at: int  # ns since the run began
    text: str = ""
    system: str = ""  # "" = none
    max_tokens: int = 0  # 0 = the answer comes in one piece
    ids: tuple[int, ...] = ()  # the prompt as token ids, instead of text
    item: int | None = None
    priority: int = 0  # as Triton counts: 1 comes first, 0 is the model's default; an LLM goes by the tier

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation that is sent."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.text}]


@dataclass(frozen=True, slots=True)
class Sample:
    """A request as it went.

    `messages` holds (time, tokens) of every message that carried tokens. `first` is the time of the first of them and
    `end` that of the end of the answer, None when they never came. `asked` is the number of output tokens asked for, 0
    of a model that answers in one piece: then there are no messages, no TTFT and no ITL.
    """

    id: str
    model: str
    tier: str
    intended: Time
    sent: Time
    first: Time | None
    end: Time | None
    messages: tuple[tuple[Time, Annotated[Count, Field(gt=0)]], ...]
    outcome: Outcome
    error: str
    finish_reason: str
    asked: Count
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count

    @property
    def ttft(self) -> float | None:
        """ns from the intended send time to the first token; infinite unless it ended well, None without tokens."""
        if not self.asked:
            return None
        return self.first - self.intended if self.outcome == "ok" and self.first is not None else float("inf")

    @property
    def e2e(self) -> float:
        """ns from the intended send time to the end; infinite unless the request ended well."""
        return self.end - self.intended if self.outcome == "ok" and self.end is not None else float("inf")

    def itl(self) -> Iterator[float]:
        """One gap in ns per token after the first message: a message of n tokens counts as n gaps of an nth each.

        Tokens that were asked for and never came, because the request was refused or failed, are infinite gaps.
        """
        for (before, _), (time, tokens) in zip(self.messages, self.messages[1:], strict=False):
            yield from [(time - before) / tokens] * tokens
        if self.asked and self.outcome != "ok":
            received = sum(tokens for _, tokens in self.messages)
            yield from [float("inf")] * (self.asked - max(1, received))


def write(path: Path, samples: Iterable[Sample]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(line(sample) + "\n")


def line(sample: Sample) -> str:
    """One sample as JSON."""
    return json.dumps(asdict(sample), ensure_ascii=False)


def read(path: Path) -> list[Sample]:
    with path.open(encoding="utf-8") as file:
        return [_from_json(json.loads(line)) for line in file]


def _from_json(raw: dict[str, Any]) -> Sample:
    return Sample(**raw | {"messages": tuple((time, tokens) for time, tokens in raw["messages"])})
