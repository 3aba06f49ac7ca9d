"""Windows of samples against brute force: arrays, counters that restart, quantiles of histograms."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_observe_ring import some

from observe import window
from observe.ring import Ring
from observe.series import parse
from observe.window import histogram_quantile, increase, of_samples

NAN = math.nan


@pytest.mark.parametrize("seed", range(5))
def test_a_ring_becomes_arrays_with_holes_where_a_series_was_not_there(tmp_path: Path, seed: int) -> None:
    samples = some(400, seed)
    with Ring(tmp_path, 100_000) as ring:
        for now, values in samples:
            ring.append(now, values)
    found = window.read(tmp_path)
    samples = samples[-len(found.times) :]
    assert found.times.tolist() == [now for now, _ in samples]
    names = {name for _, values in samples for name in values}
    assert {str(series) for series in found.values} == names
    for name in names:
        expected = np.array([values.get(name, NAN) for _, values in samples])
        np.testing.assert_array_equal(found.values[parse(name)], expected)
    whole = of_samples(samples)
    assert all(np.array_equal(whole.values[series], one, True) for series, one in found.values.items())
    part = found.between(samples[100][0], samples[200][0])
    assert part.times.tolist() == [now for now, _ in samples[100:201]] and part.seconds == 100


def test_only_what_is_wanted_is_kept(tmp_path: Path) -> None:
    with Ring(tmp_path, 2**20) as ring:
        ring.append(0, {'a{x="1"}': 1, 'a{x="2"}': 2, "b": 3})
    assert list(window.read(tmp_path, lambda series: series.label("x") == "2").values) == [parse('a{x="2"}')]


runs = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=6)


@settings(max_examples=100)
@given(runs, st.randoms(use_true_random=False))
def test_increase_counts_each_event_after_the_first_look(runs: list[list[int]], random: Random) -> None:
    """A run of the server is what it counts before each look; it begins at 0. Some looks fail and see nothing."""
    seen: list[float] = []
    events, looked = 0, 0
    for run in runs:
        if seen and run[0] >= seen[-1]:
            continue  # such a restart cannot be told from going on
        for counter, count in zip(accumulate(run), run, strict=True):
            events += count if looked else 0
            looked += 1
            seen.append(float(counter))
    for _ in range(random.randrange(4)):
        seen.insert(random.randrange(len(seen)), NAN)
    assert increase(np.array(seen)) == (events if looked > 1 else pytest.approx(NAN, nan_ok=True))


def test_deltas_and_rates_add_up_over_series_and_restarts() -> None:
    values = [(0, 10.0, 5.0), (1, 14.0, NAN), (2, 2.0, 6.0), (4, 3.0, 9.0)]
    samples = [(at * 10**9, {'c{m="a",v="1"}': x, 'c{m="a",v="2"}': y, 'c{m="b"}': 1.0}) for at, x, y in values]
    found = of_samples([(now, {k: v for k, v in it.items() if not math.isnan(v)}) for now, it in samples])
    assert found.delta("c", m="a") == (4 + 2 + 1) + (1 + 3)
    assert found.rate("c", m="a") == pytest.approx(7 / 4 + 4 / 4)
    assert found.delta("c", m="b") == 0
    assert found.latest("c") == 3 + 9 + 1
    assert math.isnan(found.delta("c", m="none")) and math.isnan(found.rate("d")) and math.isnan(found.latest("d"))


def brute(q: float, buckets: dict[float, int]) -> float:
    """Every observation put at even distances into its bucket; the one at rank q, with little between them."""
    fine = 2000
    bounds = sorted(buckets)
    placed: list[float] = []
    below, low = 0, 0.0
    for bound in bounds:
        inside = (buckets[bound] - below) * fine
        top = bound if math.isfinite(bound) else low
        placed += [low + (top - low) * (at + 1) / inside for at in range(inside)]
        below, low = buckets[bound], top
    return placed[max(0, math.ceil(q * len(placed)) - 1)]


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_are_those_of_observations_spread_evenly_in_their_buckets(seed: int) -> None:
    random = Random(seed)
    bounds = [*sorted(random.sample([0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 30.0], random.randint(2, 6))), math.inf]
    counts = np.cumsum([random.choice([0, 1, 2, 5]) for _ in bounds])
    counts[-1] += 1
    buckets = {bound: int(count) for bound, count in zip(bounds, counts, strict=True)}
    for q in (0.1, 0.37, 0.5, 0.9, 0.95, 0.99):
        assert histogram_quantile(q, buckets) == pytest.approx(brute(q, buckets), rel=2e-2, abs=1e-5)


def test_quantiles_at_the_edges_are_as_documented() -> None:
    inf = math.inf
    assert histogram_quantile(0.5, {1: 0, 2: 4, inf: 4}) == 1.5
    assert histogram_quantile(0.9, {1: 1, 2: 2, inf: 10}) == 2  # in the last bucket: its lower bound
    assert histogram_quantile(0.1, {-1: 5, 2: 5, inf: 5}) == -1  # the lowest bucket has no lower bound
    assert histogram_quantile(0.5, {1: 4, inf: 4}) == 0.5
    assert histogram_quantile(-0.1, {1: 4, inf: 4}) == -inf and histogram_quantile(1.1, {1: 4, inf: 4}) == inf
    for buckets in ({}, {inf: 3}, {1: 3, 2: 3}, {1: 0, inf: 0}):
        assert math.isnan(histogram_quantile(0.5, buckets))


def test_a_quantile_is_of_this_window_and_of_all_its_series() -> None:
    def at(now: int, a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, dict[str, float]]:
        pairs = [
            (tier, le, n) for tier, ns in (("a", a), ("b", b)) for le, n in zip(("1", "2", "+Inf"), ns, strict=True)
        ]
        return now, {f'h_bucket{{le="{le}",m="x",tier="{tier}"}}': float(n) for tier, le, n in pairs}

    found = of_samples([at(0, (100, 100, 100), (0, 0, 0)), at(1, (100, 104, 104), (4, 4, 4))])
    assert found.quantile(0.5, "h", m="x") == 1.0
    assert found.quantile(0.5, "h", tier="a") == 1.5
    assert found.quantile(0.25, "h", tier="b") == 0.25
    assert math.isnan(found.quantile(0.5, "h", m="y"))
