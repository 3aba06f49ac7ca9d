"""Fits a law to steps that were executed: least squares on the relative error, no cost below zero, the sum kept.

Must not know where the steps come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from decode.executors.cost_model import OTHERS, PAUSE, Fit, FittedLaw, Step

HELD_OUT = 5  # every fifth step is kept for the error
LEAST = 20  # steps with a number of tokens within a piece, or the piece is joined to the one before
CLIP = 3.0  # times the median error that a step may be off and still count in full
PASSES = 5
QUANTILES = 100  # of measured over predicted, that a law keeps

Floats = npt.NDArray[np.float64]


class FitError(ValueError):
    """Too few steps to fit a law to; one line."""

    exit_status = 2


def fit(steps: Sequence[Step]) -> FittedLaw:
    """The law of these steps, with its error on every fifth, which it has not seen. Raises FitError."""
    if len(steps) < 2 * LEAST:
        raise FitError(f"a law needs at least {2 * LEAST} steps, and {len(steps)} were run; run more requests")
    seen = [step for at, step in enumerate(steps) if at % HELD_OUT]
    kept = steps[::HELD_OUT]
    knots = _knots([work.prefill_tokens + work.decodes for work, _ in seen])
    rows, taken = _features(seen, knots), np.array([ns for _, ns in seen])
    theta = _solve(rows, taken)
    # A queue waits for slow steps as well: together, steps are to take what they took.
    predicted = rows @ theta
    theta *= np.minimum(taken, PAUSE * predicted).sum() / predicted.sum()
    off = np.minimum(taken / (rows @ theta), PAUSE)
    spread = tuple(np.quantile(off, (np.arange(QUANTILES) + 0.5) / QUANTILES).tolist())
    law = _law(knots, theta, Fit(0.0, 0.0, len(seen), len(kept)), spread)
    median, p95 = errors(law, kept)
    return replace(law, fit=law.fit._replace(median=median, p95=p95))


def errors(law: FittedLaw, steps: Sequence[Step]) -> tuple[float, float]:
    """Median and 95th percentile of the relative error of `law` on `steps`."""
    off = np.array([abs(law.step(work) - ns) / ns for work, ns in steps])
    return float(np.median(off)), float(np.quantile(off, 0.95))


def _knots(tokens: Sequence[int]) -> tuple[int, ...]:
    """0 and powers of two, with at least LEAST steps from each to the next and beyond the last."""
    counts, knots = np.sort(np.array(tokens)), [0]
    for power in range(1, 20):
        below = int(np.searchsorted(counts, 2**power))
        if below - int(np.searchsorted(counts, knots[-1])) >= LEAST and len(counts) - below >= LEAST:
            knots.append(2**power)
    return tuple(knots)


def _features(steps: Sequence[Step], knots: tuple[int, ...]) -> Floats:
    """[steps, 6 + knots]: 1, tokens within each piece, then the rest of StepWork in its order."""
    works = np.array([work for work, _ in steps], dtype=np.float64)
    tokens = works[:, 0] + works[:, 3]
    ends = (*knots[1:], np.inf)
    pieces = [np.clip(tokens, knot, end) - knot for knot, end in zip(knots, ends, strict=True)]
    return np.stack([np.ones(len(steps)), *pieces, *works[:, 1:].T], axis=1)


def _solve(features: Floats, ns: Floats) -> Floats:
    """Least squares of the relative error; steps far off (a neighbour on the machine) count less with each pass."""
    weights = np.ones(len(ns))
    theta = np.zeros(features.shape[1])
    for _ in range(PASSES):
        scale = weights / ns
        theta = _not_negative(features * scale[:, None], ns * scale)
        off = np.abs(features @ theta - ns) / ns
        weights = np.sqrt(np.minimum(1.0, CLIP * max(float(np.median(off)), 1e-9) / np.maximum(off, 1e-12)))
    return theta


def _not_negative(rows: Floats, wanted: Floats) -> Floats:
    """Least squares without costs below zero: whichever comes out lowest is left out, until none is negative."""
    size = np.linalg.norm(rows, axis=0)
    used = [column for column in range(rows.shape[1]) if size[column] > 0]
    theta = np.zeros(rows.shape[1])
    while used:
        found: Any = np.linalg.lstsq(rows[:, used] / size[used], wanted, rcond=1e-10)[0]
        if found.min() >= 0:
            theta[used] = found / size[used]
            break
        del used[int(found.argmin())]
    return theta


def _law(knots: tuple[int, ...], theta: Floats, told: Fit, spread: tuple[float, ...]) -> FittedLaw:
    values = [float(value) for value in theta]
    slopes, others = values[1 : 1 + len(knots)], values[1 + len(knots) :]
    return FittedLaw(
        base=values[0],
        knots=knots,
        slopes=tuple(slopes),
        fit=told,
        spread=spread,
        **dict(zip(OTHERS, others, strict=True)),
    )
