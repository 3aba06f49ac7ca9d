"""What a client asks for and how it can end: requests, sampling parameters, reasons, usage.

Everything here is immutable and plain. Must not know tensors, clocks, threads, JSON or Triton.
Times are integer nanoseconds of whichever clock the driver runs on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20
MAX_REAL = 1e308
MAX_STOPS = 32
MAX_STOP_LENGTH = 256  # characters
MAX_STOP_IDS = 256


class InvalidRequest(ValueError):
    """A request that can never be served as written; the message names the field, its value and what is allowed."""


class FinishReason(StrEnum):
    """Why an accepted request ended. The first three are success."""

    STOP = "stop"  # end-of-sequence token, stop token id or stop string
    LENGTH = "length"  # max_tokens or max_model_len reached
    CANCELLED = "cancelled"  # the client cancelled or went away
    ERROR = "error"  # a step raised; the message is in Finished.message


class RejectReason(StrEnum):
    """Why a request was never run."""

    INVALID = "invalid"  # malformed, or can never fit this engine
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    SHUTTING_DOWN = "shutting_down"
    UNHEALTHY = "unhealthy"  # the engine is down and being brought back
    CANCELLED = "cancelled"  # cancelled while it waited


def _require(ok: bool, field: str, value: object, allowed: str) -> None:
    if not ok:
        text = repr(value)
        raise InvalidRequest(f"{field}: {text if len(text) <= 80 else text[:77] + '...'} is not allowed; {allowed}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_REAL


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. Field names and meanings are those of vLLM, so that existing clients work.

    Raises InvalidRequest on construction when a field has a wrong type or lies outside its range. Ranges are narrower
    than vLLM's where a value could make a row impossible to draw, as that fails the step for everybody in it.
    """

    max_tokens: int = 16
    min_tokens: int = 0  # end-of-sequence and stop ids are not drawn before this many tokens
    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    seed: int | None = None  # None: the service draws one; the core needs a number
    stop: tuple[str, ...] = ()  # matched on text, outside the core
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None = off; k = the drawn token's and the k best tokens' log-probabilities

    def __post_init__(self) -> None:
        _require(_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "an integer >= 1")
        _require(
            _is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"an integer from 0 to max_tokens ({self.max_tokens})",
        )
        _require(_is_real(self.temperature) and self.temperature >= 0, "temperature", self.temperature, "a number >= 0")
        _require(_is_int(self.top_k) and self.top_k >= -1, "top_k", self.top_k, "an integer >= 0 (0 or -1 = all)")
        _require(_is_real(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "a number in (0, 1]")
        _require(_is_real(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "a number in [0, 1]")
        _require(
            _is_real(self.repetition_penalty) and 0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "a number from 0.01 to 100",
        )
        for field in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, field)
            _require(_is_real(value) and -2 <= value <= 2, field, value, "a number from -2 to 2")
        self._check_ends()

    def _check_ends(self) -> None:
        """The seed, what ends a request, and what is told of its draws."""
        _require(
            self.seed is None or (_is_int(self.seed) and 0 <= self.seed <= MAX_SEED),
            "seed",
            self.seed,
            f"an integer from 0 to {MAX_SEED}",
        )
        _require(
            len(self.stop) <= MAX_STOPS
            and all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_LENGTH for s in self.stop),
            "stop",
            self.stop,
            f"at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters",
        )
        _require(
            len(self.stop_token_ids) <= MAX_STOP_IDS and all(_is_int(t) and t >= 0 for t in self.stop_token_ids),
            "stop_token_ids",
            self.stop_token_ids,
            f"at most {MAX_STOP_IDS} integers >= 0",
        )
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "true or false")
        _require(
            self.logprobs is None or (_is_int(self.logprobs) and 0 <= self.logprobs <= MAX_LOGPROBS),
            "logprobs",
            self.logprobs,
            f"an integer from 0 to {MAX_LOGPROBS}",
        )

    @property
    def penalized(self) -> bool:
        """Whether drawing needs the tokens so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked, as the engine takes it. `prompt` holds at least one token id; `sampling.seed` is set."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    tier: str = "default"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens a request cost: prompt tokens, those of them served from the prefix cache, and output tokens."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int = 0
