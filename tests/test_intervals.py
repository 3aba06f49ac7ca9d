"""Intervals of percentiles, and draws of blocks: against counting by hand, and by how often they hold the truth."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from math import ceil, comb, inf, log
from random import Random

import numpy as np
import pytest

from config_gen.percentiles import percentile
from loadtest import verdict
from loadtest.bootstrap import draws, percentiles, totals
from loadtest.intervals import Interval, blocks, effective_count, interval, ranks

P50, P95, P99 = Fraction(1, 2), Fraction(95, 100), Fraction(99, 100)
MS = 10**6


def chance(count: int, q: Fraction, hits: range) -> Fraction:
    return sum((comb(count, k) * q**k * (1 - q) ** (count - k) for k in hits), Fraction(0))


@pytest.mark.parametrize("q", [P50, P95, P99, Fraction(1, 10)])
def test_ranks_are_the_narrowest_whose_tails_hold_by_exact_counting(q: Fraction) -> None:
    tail = Fraction(25, 1000)
    for count in (1, 2, 5, 19, 72, 73, 120):
        below, above = ranks(count, q, 0.95)
        # The percentile is under the sample of rank r when fewer than r samples are at or below it.
        assert below == 0 or chance(count, q, range(below)) <= tail
        assert chance(count, q, range(below + 1)) > tail
        assert above == count + 1 or chance(count, q, range(above, count + 1)) <= tail
        assert chance(count, q, range(above - 1, count + 1)) > tail


def test_p95_has_no_upper_end_below_72_samples_and_p99_none_below_368() -> None:
    assert [ranks(n, P95, 0.95)[1] > n for n in (71, 72)] == [True, False]  # 0.95 ** 72 is 0.0249
    assert [ranks(n, P99, 0.95)[1] > n for n in (367, 368)] == [True, False]  # 0.99 ** 368 is 0.0248
    few = [float(at) for at in range(1, 61)]
    assert interval(few, [at % 30 for at in range(60)], P95) == Interval(float(ranks(60, P95, 0.95)[0]), None)


def test_lost_requests_are_infinite_ends_and_no_warning() -> None:
    values = [float(at) for at in range(1, 97)] + [inf] * 4
    owners = [at % 30 for at in range(100)]
    found = interval(values, owners, P95)
    assert found.low is not None and 88 <= found.low <= 93 and found.high == inf
    assert interval([inf] * 100, owners, P95) == Interval(inf, inf)


def test_a_request_whose_gaps_are_alike_counts_about_once() -> None:
    random = Random(1)
    gaps = sorted((value, owner) for owner in range(30) for value in [random.random()] * 40)
    values, owners = [value for value, _ in gaps], [owner for _, owner in gaps]
    counted = effective_count(np.array(values), np.array(owners), percentile(values, P50))
    assert counted in (29, 30)  # 30 requests, of 1,200 gaps
    assert effective_count(np.array([1.0, 2.0]), np.array([3, 3]), 1.0) == 1
    alike = [1.0] * 300
    assert interval(alike, blocks(300), P50) == Interval(1.0, 1.0)


def queue(random: np.random.Generator, count: int, load: float) -> np.ndarray:
    """Times in a queue with one server (Lindley), after it has run for a while."""
    gaps, work = random.exponential(1, count + 100), load * random.lognormal(-0.125, 0.5, count + 100)
    waits, wait = [], 0.0
    for gap, takes in zip(gaps, work, strict=True):
        wait = max(0.0, wait - gap) + takes
        waits.append(wait)
    return np.array(waits[100:])


def every_rank(count: int, q: Fraction, level: float) -> tuple[int, int]:
    """The same from the masses of all draws, each by its factorials."""
    tail = (1 - level) / 2
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    hits = np.arange(count + 1)
    mass = np.exp(logs[-1] - logs - logs[::-1] + hits * np.log(float(q)) + (count - hits) * np.log1p(-float(q)))
    reached = np.cumsum(mass)
    return int(np.searchsorted(reached, tail)), int(np.searchsorted(reached, 1 - tail)) + 1


def test_ranks_near_the_mean_are_those_of_all_draws() -> None:
    random = Random(7)
    counts = [*range(1, 60), *(int(10 ** random.uniform(1.7, 5)) for _ in range(60))]
    for count in counts:
        for q in (P50, P95, P99, Fraction(random.randint(1, 9999), 10_000)):
            assert ranks(count, q, 0.95) == every_rank(count, q, 0.95), (count, q)


def every_percentile(drawn: np.ndarray, ordered: np.ndarray, owners: np.ndarray, q: Fraction) -> np.ndarray:
    """The same from a table of how many samples of each block are among the first 0, 1, 2, …"""
    upto = np.concatenate([np.zeros((1, drawn.shape[1]), int), np.cumsum(np.eye(drawn.shape[1], dtype=int)[owners], 0)])
    sums = drawn @ upto.T
    wanted = -(-sums[:, -1] * q.numerator // q.denominator)
    first = (sums >= wanted[:, None]).argmax(axis=1)
    return np.where(wanted > 0, ordered[first - 1], np.nan)


def test_percentiles_of_draws_are_those_by_a_table_of_all_samples() -> None:
    for seed in range(12):
        random = np.random.default_rng(seed)
        count, most = int(random.integers(1, 900)), int(random.integers(1, 31))
        ordered = np.sort(random.choice([random.exponential(1, count), random.integers(0, 9, count)]))
        ordered[count - count // 50 :] = inf
        owners = random.integers(0, most, count)
        drawn = draws(most, 200, seed)
        for q in (P50, P95, P99):
            found = percentiles(drawn, ordered.tolist(), owners.tolist(), q)
            assert np.array_equal(found, every_percentile(drawn, ordered, owners, q), equal_nan=True)


def peak(work: Callable[[], object]) -> int:
    """Bytes that it took at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_for_samples_not_for_samples_times_blocks_and_for_ranks_not_for_all_draws() -> None:
    count, drawn = 400_000, draws(30, 500)
    ordered, owners = list(map(float, range(count))), [at % 30 for at in range(count)]
    assert peak(lambda: percentiles(drawn, ordered, owners, P99)) < 40 * count  # a table is 120 bytes a sample
    ranks.cache_clear()
    assert peak(lambda: ranks(1_000_003, P99, 0.95)) < 10**6  # 48 MB when all draws are looked at


def test_an_interval_is_found_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Fraction] = []

    def counted(ordered: Sequence[float], owners: Sequence[int], q: Fraction) -> Interval:
        asked.append(q)
        return interval(ordered, owners, q)

    monkeypatch.setattr(verdict, "interval", counted)
    latency = verdict.Latency(tuple(map(float, range(1, 601))), tuple(at % 30 for at in range(600)))
    found = [latency.interval(q) for q in (P50, P95, P50, P95)]
    assert found[:2] == found[2:] and found[0] != found[1] and asked == [P50, P95]
    assert latency == verdict.Latency(latency.samples, latency.owners)


def holds(samples: np.ndarray, q: Fraction, true: float) -> bool:
    order = np.argsort(samples, kind="stable")
    found = interval(samples[order].tolist(), np.array(blocks(len(samples)))[order].tolist(), q)
    return (found.low or 0.0) <= true and (found.high is None or true <= found.high)


def test_intervals_of_independent_samples_hold_the_truth_95_times_in_100() -> None:
    for q, count in ((P50, 150), (P95, 150), (P99, 800)):
        seen = [holds(np.random.default_rng(seed).exponential(1, count), q, -log(1 - float(q))) for seed in range(300)]
        assert 0.92 <= np.mean(seen) <= 1.0, q


def test_intervals_hold_the_truth_in_a_queue_too_where_neighbours_waited_together() -> None:
    true = np.quantile(queue(np.random.default_rng(0), 60_000, 0.3), [0.5, 0.95])
    for q, value in zip((P50, P95), true, strict=True):
        seen = [holds(queue(np.random.default_rng(1 + seed), 300, 0.3), q, value) for seed in range(100)]
        assert np.mean(seen) >= 0.88, q


def test_blocks_follow_the_order_of_sending_and_are_alike_in_size() -> None:
    assert blocks(0) == [] and blocks(3) == [0, 1, 2]
    sizes = np.bincount(blocks(1000))
    assert len(sizes) == 30 and set(sizes) == {33, 34} and blocks(1000) == sorted(blocks(1000))


def test_draws_follow_from_the_seed_and_take_as_many_blocks_as_there_are() -> None:
    drawn = draws(30, 500)
    assert (drawn == draws(30, 500)).all() and (drawn != draws(30, 500, seed=1)).any()
    assert set(drawn.sum(axis=1)) == {30}
    assert drawn.mean(axis=0) == pytest.approx(1, abs=0.2)


def test_percentiles_and_sums_of_every_draw_are_those_of_the_repeated_samples() -> None:
    random = Random(5)
    for _ in range(20):
        count, most = random.randint(1, 12), 3
        owned = sorted((random.choice([1.0, 2.5, 2.5, 7.0, inf]), random.randrange(most)) for _ in range(count))
        values, owners = [value for value, _ in owned], [owner for _, owner in owned]
        every = np.array([times for times in product(range(4), repeat=most) if sum(times) == 3])
        for q in (P50, P95, Fraction(1, 3)):
            found = percentiles(every, values, owners, q)
            for times, got in zip(every, found, strict=True):
                repeated = [value for value, owner in owned for _ in range(times[owner])]
                if repeated:
                    assert got == repeated[ceil(q * len(repeated)) - 1]
                else:
                    assert np.isnan(got)
        finite = [1.0] * count
        assert totals(every, finite, owners).tolist() == [sum(times[owner] for owner in owners) for times in every]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Interval(190 * MS, 301 * MS), "190–301 ms"),
        (Interval(750 * MS, 1900 * MS), "750 ms–1.9 s"),
        (Interval(190 * MS, None), "≥ 190 ms"),
        (Interval(None, 301 * MS), "≤ 301 ms"),
        (Interval(190 * MS, inf), "190 ms–∞"),
        (Interval(inf, inf), "∞–∞"),
        (Interval(None, None), ""),
    ],
)
def test_an_interval_is_told_shortly(found: Interval, told: str) -> None:
    assert str(found) == told
