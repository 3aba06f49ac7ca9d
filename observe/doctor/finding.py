"""What a diagnosis is made of: findings with evidence, confidence and remedy, and items of a checklist.

Must not know which rules there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["cause", "problem", "hint"]
SEVERITIES: tuple[Severity, ...] = ("cause", "problem", "hint")
Answer = Literal["yes", "no", "unknown"]
LONG = 60.0  # s, after which a window's length adds nothing to confidence
SURE = 0.97  # at most; a window is never all there is to know


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number that was seen, told with its unit, and the series that it was read from."""

    told: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Confidence:
    """`share` from 0 to 1, and a reason for each part of it."""

    share: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with `about` (a model, a GPU, the client). `remedy` is one sentence that says what to do.

    A cause is to be mended; a problem hurts, and may follow from a cause; a hint costs nothing today. `symptoms` are
    the findings that this one explains.
    """

    name: str
    title: str
    about: str
    severity: Severity
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    remedy: str
    symptoms: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """An item of a checklist, put so that yes is good; `told` holds the number, or why it is unknown."""

    question: str
    answer: Answer
    told: str


def confidence(seconds: float, effect: float, *signals: tuple[str, bool | None]) -> Confidence:
    """From what was watched, for `seconds`, how far beyond its threshold it is (`effect`, 0 to 1), and other signals.

    A signal is a clause that is true, false, or unknown (None).
    """
    length = min(1.0, seconds / LONG)
    effect = min(1.0, max(0.0, effect))
    seen = [told for told, true in signals if true]
    against = [told for told, true in signals if true is False]
    share = 0.45 + 0.2 * length + 0.2 * effect + 0.12 * bool(seen) - 0.15 * bool(against)
    reasons = [f"watched for {seconds:.0f} s" + ("" if length == 1 else f", of {LONG:.0f} s that make it sure")]
    reasons.append("far beyond the threshold" if effect > 0.5 else "not far beyond the threshold")
    reasons += [f"it fits that {told}" for told in seen] + [
        f"it does not fit: not true that {told}" for told in against
    ]
    missing = [told for told, true in signals if true is None]
    reasons += [f"unknown whether {told}" for told in missing]
    return Confidence(round(min(SURE, share), 2), tuple(reasons))


def beyond(value: float, threshold: float, far: float) -> float:
    """How far `value` is on the way from `threshold` (0) to `far` (1), in either direction."""
    return min(1.0, max(0.0, (value - threshold) / (far - threshold)))
