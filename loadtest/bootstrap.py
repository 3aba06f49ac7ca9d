"""What a metric might have been in another run of the same load: a bootstrap over blocks of the load.

A draw takes as many blocks as there are, with replacement (Efron, Annals of Statistics 7, 1979; of whole blocks,
because neighbours are not independent: Carlstein, Annals of Statistics 14, 1986). Two runs of the same requests are
drawn with the same blocks: what both have in common, long prompts and moments of many arrivals, falls out of the ratio.

Simulated, a server that is busy for 30 and 60 % of the time, with pauses of a neighbour, 300 requests: of pairs of runs
alike, 11 and 31 of 100 are told to be worse when requests are drawn, 1 and 9 when blocks are; of runs that are 10 %
slower 91 and 94, and 76 and 67. Must not know samples or what is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Draws = NDArray[np.int64]  # draws x blocks: how often a draw took a block


def draws(blocks: int, count: int, seed: int = 0) -> Draws:
    """`count` draws of so many blocks, the same ones for the same arguments."""
    chance = np.full(blocks, 1 / blocks)
    return np.random.default_rng(seed).multinomial(blocks, chance, size=count)


def totals(drawn: Draws, values: Sequence[float], owners: Sequence[int]) -> NDArray[np.float64]:
    """The sum of `values` in each draw; `owners` are their blocks."""
    sums = np.asarray(np.bincount(owners, values, minlength=drawn.shape[1]), float)
    found: NDArray[np.float64] = drawn @ sums
    return found


def percentiles(drawn: Draws, ordered: Sequence[float], owners: Sequence[int], q: Fraction) -> NDArray[np.float64]:
    """The q percentile, nearest rank, of each draw of `ordered`, which ascends and may be infinite.

    NaN of a draw without samples.
    """
    values, count = np.asarray(ordered, float), len(ordered)
    holds = _Holds(np.asarray(owners, np.int16), drawn.shape[1])
    wanted = -(-(drawn @ holds.sizes) * q.numerator // q.denominator)
    low, high = np.zeros(len(drawn), np.int64), np.full(len(drawn), count)  # reached after (low, high] samples
    while (high - low).max(initial=0) > 1:
        middle = (low + high) // 2
        firsts, which = np.unique(middle, return_inverse=True)
        enough = np.einsum("db,db->d", drawn, holds.among(firsts)[which]) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(wanted > 0, values[high - 1], np.nan)


class _Holds:
    """Where the samples of each block are among all: memory for one number a sample, not for one of each block."""

    def __init__(self, owners: NDArray[np.int16], blocks: int) -> None:
        self.sizes = np.bincount(owners, minlength=blocks)
        self._places = np.split(np.argsort(owners, kind="stable"), np.cumsum(self.sizes)[:-1])

    def among(self, firsts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the first n samples, for each of `firsts`, how many each block holds: firsts x blocks."""
        return np.stack([np.searchsorted(places, firsts) for places in self._places], axis=1)
