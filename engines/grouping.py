"""How a batch of texts is computed: in one run, or in several of about one length each, whichever costs less.

In one run every text is padded to the longest. What a run costs is measured by the builder: a fixed part, and a part
for each padded token. On a GPU the fixed part is large beside a token's, and batches stay whole. Must not know texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def groups(lengths: Sequence[int], cost: Callable[[int, int], float]) -> list[list[int]]:
    """Positions of items, grouped so that the summed `cost(rows, longest)` of the groups is least.

    Of items sorted by length some cheapest grouping is made of neighbours, since a shorter item never makes a group
    longer; the best of those is found by dynamic programming over where the last group begins, in O(n^2).
    """
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    best, begins = [0.0], [0]
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        found = min((best[begin] + cost(end - begin, longest), begin) for begin in range(end))
        best.append(found[0])
        begins.append(found[1])
    made: list[list[int]] = []
    end = len(order)
    while end:
        made.insert(0, order[begins[end] : end])
        end = begins[end]
    return made


def fit(times: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(fixed part, part for each token) of a run, of (padded tokens, time) pairs; least squares of the relative error.

    Neither part is below zero: with one shape alone, all is for the tokens.
    """
    weights = [1 / taken**2 for _, taken in times]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, times, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, times, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, times, strict=True))
    if spread == 0:
        return 0.0, mean_t / mean_n
    slope = sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in zip(weights, times, strict=True)) / spread
    slope = max(0.0, slope)
    fixed = mean_t - slope * mean_n
    if fixed >= 0:
        return fixed, slope
    return 0.0, sum(w * n * t for w, (n, t) in zip(weights, times, strict=True)) / sum(
        w * n * n for w, (n, _) in zip(weights, times, strict=True)
    )
