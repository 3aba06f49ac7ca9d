"""An executor without a model for the virtual clock: tokens follow from the position, a step's time from a law.

Owns what a law is, what of a plan it sees, and the law fitted from steps that were executed on a machine. Must not know
who plans or how a law was fitted.
"""

from __future__ import annotations

import json
import reprlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from decode.executors.gpu_cost import StepWork
from decode.plan import StepPlan, StepResult, Swap

FORMAT = 2  # of the file
MOST = 1e15  # of a number in it
PAUSE = 10.0  # times its prediction: what a step took beyond that was a pause of the machine
# Costs besides those of tokens, in the order in which StepWork counts what they are of.
OTHERS = ("prefill", "prefill_context", "decode", "context", "draw")


Step = tuple[StepWork, float]  # what was computed, and ns until the next step could be planned


class LawError(ValueError):
    """A file that holds no law; one line, names the file and what is wrong with it."""

    exit_status = 2


class Law(Protocol):
    """What a step costs."""

    @property
    def spread(self) -> Sequence[float]:
        """Factors of a prediction that steps really take, each as likely as the next; none = it is exact."""
        ...

    def step(self, work: StepWork) -> float:
        """Predicted ns of a step that computes `work`, with all that happens until the next one can be planned."""
        ...


def work_of(plan: StepPlan) -> StepWork:
    """The features of a plan. A chunk of one token counts as a decode, even the last of a prompt: it costs the same."""
    tokens = prefills = decodes = context = prefill_context = draws = 0
    for chunk in plan.chunks:
        size, start = len(chunk.tokens), chunk.start
        if size == 1:
            decodes += 1
            context += start + 1
        else:
            tokens += size
            prefills += 1
            prefill_context += size * (2 * start + size) // 2
        if chunk.draw is not None:
            draws += 1
    return StepWork(tokens, prefills, prefill_context, decodes, context, draws)


class CostModelExecutor:
    """Executes nothing: a step takes what `law` says, in whole nanoseconds, at least one.

    Times a factor of its spread, drawn for every step, the same ones in every run. Pages that it moves to the host or
    back take `swap_page_time` ns each on top.
    """

    def __init__(self, law: Law, swap_page_time: int = 0) -> None:
        self.law = law
        self.profile: dict[str, float] = {}
        self._swap_page_time = swap_page_time
        self._spread = law.spread
        self._random = Random(0)

    def execute(self, plan: StepPlan) -> StepResult:
        tokens = tuple([None if c.draw is None else c.draw.position for c in plan.chunks])
        elapsed = self.law.step(work_of(plan))
        if self._spread:
            elapsed *= self._spread[int(self._random.random() * len(self._spread))]
        if plan.copies:
            elapsed += self._swap_page_time * sum(isinstance(copy, Swap) for copy in plan.copies)
        return StepResult(tokens, max(1, round(elapsed)))


class Fit(NamedTuple):
    """How far a law is off on steps that it was not fitted to: relative errors, and how many steps there were."""

    median: float
    p95: float
    steps: int  # fitted to
    held_out: int


class RunError(NamedTuple):
    """A measured run, simulated with a law that was not fitted to it: simulated over measured latencies, less 1."""

    requests: int
    ttft_p50: float
    ttft_p99: float
    e2e_p50: float
    e2e_p99: float


@dataclass(frozen=True)
class FittedLaw:
    """ns = base + by the number of tokens, piece by piece + the other features of StepWork, each times its cost.

    `slopes[i]` is ns per token between knots[i] and knots[i + 1]; the last one has no end. Few tokens read all weights
    (memory-bound), many are bound by computing: hence pieces.
    """

    base: float
    knots: tuple[int, ...]  # ascending, the first is 0
    slopes: tuple[float, ...]  # as many
    prefill: float  # of a chunk of a prompt
    prefill_context: float
    decode: float
    context: float
    draw: float
    fit: Fit
    spread: tuple[float, ...] = ()  # quantiles of measured over predicted, each as likely as the next

    def __post_init__(self) -> None:
        at, found = self.base, []
        for i, slope in enumerate(self.slopes):
            found.append(at)
            at += slope * (self.knots[i + 1] - self.knots[i] if i + 1 < len(self.knots) else 0)
        object.__setattr__(self, "_at_knots", tuple(found))

    def step(self, work: StepWork) -> float:
        prefill_tokens, prefills, prefill_context, decodes, context, draws = work
        tokens = prefill_tokens + decodes
        piece = bisect_right(self.knots, tokens) - 1
        by_tokens: float = self._at_knots[piece] + self.slopes[piece] * (tokens - self.knots[piece])  # type: ignore[attr-defined]
        prompts = self.prefill * prefills + self.prefill_context * prefill_context
        return by_tokens + prompts + self.decode * decodes + self.context * context + self.draw * draws


@dataclass(frozen=True)
class Measured:
    """A law with what it was measured on: enough to simulate without the model at hand."""

    law: FittedLaw
    run: RunError
    machine: str
    kv_bytes_per_token: int
    max_model_len: int  # the longest that the model was made for
    weights: str
    built: str = ""  # digest of the build's record, of a law that lies beside the model
    cores: int = 0  # that a step may use; 0 where it was measured on a GPU, or nobody said
    host_memory: int = 0  # bytes of the machine
    cold: float = 1.0  # times as long that a step after a pause takes

    def told(self) -> str:
        """How far it is off, in sentences."""
        fit, run = self.law.fit, self.run
        return (
            f"off by {fit.median:.1%} at the median and {fit.p95:.1%} at P95, on {fit.held_out} steps that it was not "
            f"fitted to. A run of {run.requests} requests, simulated with it: TTFT P50 {run.ttft_p50:+.1%}, P99 "
            f"{run.ttft_p99:+.1%}, E2E P50 {run.e2e_p50:+.1%}, P99 {run.e2e_p99:+.1%} of what was measured."
        )

    def write(self, path: Path) -> None:
        """Raises OSError."""
        raw = {"format": FORMAT, **asdict(self), "run": self.run._asdict()}
        raw["law"]["fit"] = self.law.fit._asdict()
        path.write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Raises LawError."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise LawError(f"{path}: {error.strerror}; give what `gapless bench engine --law` wrote") from None
        except (ValueError, RecursionError) as error:
            raise LawError(f"{path}: not JSON: {error}; give what `gapless bench engine --law` wrote") from None
        try:
            return _from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            told = f"{type(error).__name__}: {error}"
            raise LawError(f"{path}: holds no law ({told}); give what `gapless bench engine --law` wrote") from None


def _from_json(raw: dict[str, Any]) -> Measured:
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']!r}, and {FORMAT} is allowed")
    law, told, off = raw["law"], raw["run"], raw["law"]["fit"]
    knots, slopes = tuple(_count("knots", n, 0) for n in law["knots"]), tuple(_cost(n) for n in law["slopes"])
    if not knots or knots[0] != 0 or list(knots) != sorted(set(knots)) or len(slopes) != len(knots):
        raise ValueError("knots must ascend from 0, with one slope for each")
    spread = tuple(_number("spread", factor) for factor in law["spread"])
    if any(not 0 < factor <= PAUSE for factor in spread):
        raise ValueError(f"a factor of spread is not above 0 and at most {PAUSE:g}")
    numbers = {name: _cost(law[name]) for name in ("base", *OTHERS)}
    if sum(slopes) + sum(numbers.values()) == 0:
        raise ValueError("all costs are 0")
    errors = [_number(name, off[name]) for name in ("median", "p95")]
    if min(errors) < 0:
        raise ValueError("fit: an error is below 0")
    fit = Fit(errors[0], errors[1], _count("steps", off["steps"], 0), _count("held_out", off["held_out"], 0))
    run = [_number(name, told[name]) for name in RunError._fields[1:]]
    return Measured(
        FittedLaw(**numbers, knots=knots, slopes=slopes, fit=fit, spread=spread),
        RunError(_count("requests", told["requests"], 1), *run),
        str(raw["machine"]),
        _count("kv_bytes_per_token", raw["kv_bytes_per_token"], 1),
        _count("max_model_len", raw["max_model_len"], 1),
        str(raw["weights"]),
        str(raw.get("built", "")),
        _count("cores", raw.get("cores", 0), 0),
        _count("host_memory", raw.get("host_memory", 0), 0),
        max(1.0, _number("cold", raw.get("cold", 1.0))),
    )


def _count(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: {reprlib.repr(value)} is not allowed; a whole number >= {least}")
    return value


def _number(name: str, value: object) -> float:
    """Within what no cost, error or factor exceeds; NaN is in no range."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST < value < MOST:
        raise ValueError(f"{name}: {reprlib.repr(value)} is not allowed; a number below {MOST:g}")
    return float(value)


def _cost(value: object) -> float:
    """ns."""
    if _number("a cost in ns", value) < 0:
        raise ValueError(f"a cost in ns: {value!r} is not allowed; at least 0")
    return _number("a cost in ns", value)
