"""How long a step takes, learned from the steps that were executed.

t = a + b * prefill tokens + c * decoding sequences + d * tokens of context that decoding reads + e * prefill tokens
times their context. Least squares on relative errors over the steps so far, older ones forgotten by and by, no
coefficient below zero. A step far off (a page fault, a neighbour on the machine) counts only as far as steps of its
kind, with prompts or without, usually are off. Must not know sequences or tiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

FORGET = 0.99  # weight of a step relative to the next one: about the last hundred count
UNITS = (1.0, 100.0, 10.0, 1e4, 1e5)  # of the features, so that coefficients are of one order: ms per unit
START = (2.0, 2.0, 0.2, 0.1, 0.1)  # ms per unit; what no step has told yet stays there
TRUST = 1e-5  # of START, beside one step's 1
RIDGE = 1e-12  # of the diagonal, far above rounding
OUTLIER = 3.0  # times the usual error that a step may be off and still count in full
EAGER, SELDOM = 64, 8  # after so many steps the law is worked out only every so many: it moves slowly, solving costs
LARGE = 1e100  # weight at which all sums are made small again
SURE = 16  # steps before anything is taken for an outlier
LEAST_RATE = 0.05  # at which `late` is followed, and the most that it says
LATEST = 2.0
RARE = 0.005  # share of steps with prompts that take longer than `late` says


class Work(NamedTuple):
    """What a step computes: the features of the model."""

    prefill_tokens: int
    decodes: int
    context_tokens: int  # positions that decoding sequences attend to
    prefill_context: int  # for each chunk of a prompt: its tokens times the positions they attend to


Executed = Sequence[tuple[Work, int]]  # steps that were executed: what each computed, and its ns


class StepTime:
    """Predicts ns per step. Deterministic: the same steps in the same order give the same predictions.

    `late`: all but RARE of the steps with prompts take at most so many times their prediction; LATEST at most.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._law = list(START)
        # Sums over steps, those of step n times FORGET ** -n: what is older weighs less without being touched.
        self._products = [[0.0] * 5 for _ in range(5)]  # on and above the diagonal
        self._answers = [0.0] * 5
        self._weight = 1.0
        self.late = 1.2
        self._errors = [
            0.05,
            0.05,
        ]  # how far off a step usually is, as a share of its prediction: without prompts, with

    def predict(self, work: Work) -> float:
        """ns; never below 0."""
        return _cost(self._law, _features(work))

    def learn(self, work: Work, elapsed: int) -> None:
        """Take in a step that took `elapsed` ns."""
        x = _features(work)
        expected = max(_cost(self._law, x), 1e3)
        if self.steps >= SURE:
            kind = work.prefill_tokens > 0
            usual = max(self._errors[kind], 0.01)
            ratio = elapsed / expected
            if kind:  # a quantile, followed: up by what steps are off when it was passed, down a little when not
                rate = max(usual, LEAST_RATE)  # a burst of slow steps leaves an error that is soon small again
                self.late += rate * (1 - RARE if ratio > self.late else -RARE)
                self.late = min(LATEST, max(1.0, self.late))
            self._errors[kind] += 0.05 * (min(abs(ratio - 1), 4 * usual) - self._errors[kind])
            bound = OUTLIER * usual * expected
            elapsed = int(min(expected + bound, max(expected - bound, elapsed)))
        y = max(elapsed / 1e6, 1e-3)
        weight = self._weight
        known = [(i, value / y) for i, value in enumerate(x) if value]
        for at, (i, value) in enumerate(known):
            share = weight * value
            row = self._products[i]
            for j, other in known[at:]:
                row[j] += share * other
            self._answers[i] += share
        self.steps += 1
        if self.steps <= EAGER or self.steps % SELDOM == 0:
            self._law = self._solved()
        self._weight = weight / FORGET
        if self._weight > LARGE:
            self._products = [[value / self._weight for value in row] for row in self._products]
            self._answers = [value / self._weight for value in self._answers]
            self._weight = 1.0

    def _solved(self) -> list[float]:
        """The law of the steps so far; START counts as TRUST of a step."""
        weight, sums = self._weight, self._products
        products = [[sums[min(i, j)][max(i, j)] / weight for j in range(5)] for i in range(5)]
        for i in range(5):  # features that were always proportional must not make it singular, whatever their size
            products[i][i] += TRUST + RIDGE * products[i][i]
        answers = [value / weight + TRUST * start for value, start in zip(self._answers, START, strict=True)]
        return _solve(products, answers)

    def prefill_within(self, limit: float, work: Work, context: int, most: int) -> int:
        """Most prompt tokens (up to `most`), one chunk behind `context` positions, that keep `work` in `limit` ns.

        A chunk of t tokens adds b * t + e * t * (context + t / 2).
        """
        spare = limit - self.predict(work)
        if spare <= 0:
            return 0
        square = 1e6 * self._law[4] / UNITS[4] / 2
        slope = 1e6 * self._law[1] / UNITS[1] + 2 * square * context
        if slope * most + square * most * most <= spare:
            return most
        return int(2 * spare / (slope + sqrt(slope * slope + 4 * square * spare)))


Features = tuple[float, float, float, float, float]


def _features(work: Work) -> Features:
    prefill_tokens, decodes, context_tokens, prefill_context = work
    return 1.0, prefill_tokens / UNITS[1], decodes / UNITS[2], context_tokens / UNITS[3], prefill_context / UNITS[4]


def _cost(law: list[float], x: Features) -> float:
    """ns."""
    return 1e6 * (law[0] + law[1] * x[1] + law[2] * x[2] + law[3] * x[3] + law[4] * x[4])


def _solve(products: list[list[float]], answers: list[float]) -> list[float]:
    """Least squares without negative coefficients: the most negative one is set to zero, the others solved again."""
    free = list(range(len(answers)))
    while True:
        found = _eliminate([[products[i][j] for j in free] + [answers[i]] for i in free])
        worst = min(range(len(found)), key=lambda k: found[k], default=None)
        if worst is None or found[worst] >= 0:
            break
        del free[worst]
    law = [0.0] * len(answers)
    for k, value in zip(free, found, strict=True):
        law[k] = value
    return law


def _eliminate(rows: list[list[float]]) -> list[float]:
    """Gauss for a positive definite system; each row ends with its right-hand side."""
    n = len(rows)
    for k in range(n):
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    found = [0.0] * n
    for k in reversed(range(n)):
        found[k] = (rows[k][n] - sum(rows[k][j] * found[j] for j in range(k + 1, n))) / rows[k][k]
    return found
