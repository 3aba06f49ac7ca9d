"""How long a step takes, learned from the steps that were executed.

t = a + b * prefill tokens + c * decoding sequences + d * tokens of context that decoding reads + e * prefill tokens times
their context. Fitted by recursive least squares with forgetting; a step far off (a page fault, a neighbour on the
machine) moves the fit no further than a moderate one. Must not know sequences or tiers.
"""

from __future__ import annotations

from typing import NamedTuple

FORGET = 0.995  # weight of a step relative to the next one: the last few hundred count
START = (2e6, 2e4, 2e4, 10.0, 1.0)  # ns; only until the first steps are in
SPREAD = (4e12, 4e8, 4e8, 1e4, 1e2)  # how little START is to be trusted: variances
OUTLIER = 3.0  # times the usual error that a step may be off and still count in full
NOISE = 0.05  # error of a step that counts as usual at first, as a share of its time


class Work(NamedTuple):
    """What a step computes: the features of the model."""

    prefill_tokens: int
    decodes: int
    context_tokens: int  # positions that decoding sequences attend to
    prefill_context: int  # for each chunk of a prompt: its tokens times the positions they attend to


class StepTime:
    """Predicts ns per step. Deterministic: the same steps in the same order give the same predictions."""

    def __init__(self) -> None:
        self.steps = 0
        self._theta = list(START)
        self._cov = [[SPREAD[i] if i == j else 0.0 for j in range(5)] for i in range(5)]
        self._error = NOISE

    def predict(self, work: Work) -> float:
        """ns; never below 0."""
        return max(0.0, sum(t * x for t, x in zip(self._theta, _features(work), strict=True)))

    def learn(self, work: Work, elapsed: int) -> None:
        """Take in a step that took `elapsed` ns."""
        x, cov = _features(work), self._cov
        noise = max(self._error, 1e-3) * elapsed  # one part in a thousand is below what clocks and machines keep
        gain = [sum(c * v for c, v in zip(row, x, strict=True)) for row in cov]
        total = FORGET * noise * noise + sum(v * g for v, g in zip(x, gain, strict=True))
        off = elapsed - sum(t * v for t, v in zip(self._theta, x, strict=True))
        share = abs(off) / max(elapsed, 1)
        if self.steps >= len(x):
            off *= min(1.0, OUTLIER * max(self._error, 1e-3) / max(share, 1e-12))
            self._error += 0.05 * (min(share, 4 * max(self._error, 1e-3)) - self._error)
        self._theta = [max(0.0, t + g * off / total) for t, g in zip(self._theta, gain, strict=True)]
        self._cov = [
            [min((cov[i][j] - gain[i] * gain[j] / total) / FORGET, SPREAD[i]) for j in range(5)] for i in range(5)
        ]
        self.steps += 1

    def prefill_within(self, limit: float, work: Work, context: int, most: int) -> int:
        """Most prompt tokens (at most `most`), each with `context` positions, that keep a step with `work` in `limit` ns."""
        slope = self._theta[1] + self._theta[4] * context
        spare = limit - self.predict(work)
        if spare <= 0:
            return 0
        return most if slope * most <= spare else int(spare / slope)


def _features(work: Work) -> tuple[float, float, float, float, float]:
    return (1.0, float(work.prefill_tokens), float(work.decodes), float(work.context_tokens), float(work.prefill_context))
