"""How arrivals spread: the unevenness of gaps, the movement of rates, and both together."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import mean, pstdev

import numpy as np
import pytest
from sla_files import CHAT, EMBED, spec

from config_gen.sla.spec import Spec
from config_gen.sla.timing import Point, Rates, Timing, TimingError, rates, unevenness
from gapless.parts import pick_parts
from loadtest.samples import Planned
from loadtest.schedule import TooManyRequests, schedule

SECOND = 10**9
SHAPES = ["0s:1,60s:50", "30s:1,30s:50", "0s:2,10s:0,20s:0,20s:7,45s:3", "5s:0,5s:4,6s:1,59s:0"]


def drawn(timing: Timing, rate: float = 20, seconds: float = 300, seed: int = 0) -> list[int]:
    return list(timing.moments(Random(seed), Random(f"own {seed}"), rate, int(seconds * SECOND)))


def planned(timing: Timing, declared: Spec | None = None, seconds: int = 60) -> list[Planned]:
    return schedule(pick_parts(declared or spec(CHAT, EMBED), None), seconds * SECOND, 1, 7, timing)


def factor(shape: str, seconds: float) -> float:
    """The rate there, by numpy's own interpolation; points of a step lie a nanosecond apart."""
    points = [word.split("s:") for word in shape.split(",")]
    return float(
        np.interp(seconds, [float(t) + n * 1e-9 for n, (t, _) in enumerate(points)], [float(f) for _, f in points])
    )


def test_constant_gaps_are_all_alike_and_bursts_have_the_asked_variation() -> None:
    even = np.diff(drawn(Timing(cv=0)))
    assert set(even) <= {SECOND // 20 - 1, SECOND // 20, SECOND // 20 + 1}
    assert len(even) + 1 in (5999, 6000, 6001)
    for cv in (0.5, 3.0):
        gaps = np.diff(drawn(Timing(cv), rate=100, seconds=2000))
        assert gaps.mean() == pytest.approx(SECOND / 100, rel=4 * cv / len(gaps) ** 0.5)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


@pytest.mark.parametrize("cv", [0.0, 0.4, 1.0, 3.0])
def test_the_mean_rate_is_kept_from_the_first_moment_on(cv: float) -> None:
    """A process that began with an arrival would have (cv² - 1) / 2 more of them, here 4 of 14 with a cv of 3."""
    counts = [len(drawn(Timing(cv), rate=10, seconds=1, seed=seed)) for seed in range(2000)]
    assert mean(counts) == pytest.approx(10, abs=4 * pstdev(counts) / 2000**0.5 + 1e-9)
    first = [at for seed in range(2000) for at in drawn(Timing(cv), rate=10, seconds=0.02, seed=seed)]
    assert len(first) == pytest.approx(2000 * 0.2, abs=160)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_integral_is_that_of_the_straight_lines_and_its_inverse_undoes_it(shape: str) -> None:
    moved = rates(shape)
    grid = np.linspace(0, 80, 80_001)
    heights = np.array([factor(shape, at) for at in grid])
    sums = np.concatenate([[0], np.cumsum((heights[1:] + heights[:-1]) / 2) * (grid[1] - grid[0])])
    for at in (0, 1, 4.5, 5.5, 12, 20, 29.9, 30.1, 44, 59.5, 79):
        assert moved.integral(at) == pytest.approx(np.interp(at, grid, sums), abs=0.05)
        if factor(shape, at) > 0:
            assert moved.moment(moved.integral(at)) == pytest.approx(at, abs=1e-6)


def test_integrals_by_hand() -> None:
    assert rates("0s:1,60s:50").integral(60) == 60 * 51 / 2
    assert rates("0s:1,60s:50").integral(30) == 30 * (1 + 25.5) / 2
    assert rates("30s:1,30s:50").integral(60) == 30 + 30 * 50
    assert rates("30s:1,30s:50") == Rates((Point(0, 1), Point(30, 1), Point(30, 50)))
    assert rates("0s:1,10s:0").moment(5) == float("inf")
    assert Rates().integral(17.5) == Rates().moment(17.5) == 17.5


@pytest.mark.parametrize("cv", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_many_come_in_each_stretch_as_the_rate_says_there(shape: str, cv: float) -> None:
    """Counted over many seeds; none comes while the rate is 0."""
    runs = 60
    came = [at / SECOND for seed in range(runs) for at in drawn(Timing(cv, rates(shape)), 2, 60, seed)]
    for begin, end in pairwise((0, 5, 6, 10, 20, 30, 40, 50, 60)):
        stretch = np.linspace(begin + 1e-6, end - 1e-6, 2001)
        expected = 2 * runs * (end - begin) * mean(factor(shape, at) for at in stretch)
        deviation = max(cv, 0.3) * expected**0.5 + cv * 6  # at its edges, a stretch may hold part of a burst more
        assert sum(begin <= at < end for at in came) == pytest.approx(expected, abs=4 * deviation + 2 * (cv > 1))
        if expected == 0:
            assert not any(begin < at < end for at in came)


def test_evenly_spaced_on_a_ramp_is_evenly_spaced_in_its_integral() -> None:
    """The integral from 1 to 50 over a minute is t + 49 t² / 120."""
    times = [at / SECOND for at in drawn(Timing(0, rates("0s:1,60s:50")), 4, 60)]
    spent = [at + 49 * at**2 / 120 for at in times]
    assert np.diff(spent) == pytest.approx(0.25, abs=1e-6)
    assert len(times) in (60 * 51 // 2 * 4, 60 * 51 // 2 * 4 + 1)


def test_other_timings_send_the_same_requests_at_other_times() -> None:
    usual = planned(Timing())
    fixed = {request.id: (request.text, request.system, request.max_tokens, request.item) for request in usual}
    for timing in (Timing(0), Timing(3), Timing(1, rates("0s:1,60s:3")), Timing(3, rates("20s:1,20s:0.5"))):
        other = planned(timing)
        assert other == planned(timing)
        assert [request.at for request in other] == sorted(request.at for request in other)
        both = [request for request in other if request.id in fixed]
        assert len(both) > len(usual) / 3
        assert all(fixed[r.id] == (r.text, r.system, r.max_tokens, r.item) for r in both)
        assert {(r.id, r.at) for r in usual} != {(r.id, r.at) for r in both}


def test_tiers_and_models_do_not_begin_together() -> None:
    for timing in (Timing(0), Timing(3)):
        firsts: dict[tuple[str, str], int] = {}
        for request in planned(timing):
            firsts.setdefault((request.model, request.tier), request.at)
        assert len(firsts) > 2
        assert len(set(firsts.values())) == len(firsts)


def test_more_requests_than_can_be_planned_are_refused_with_the_movement() -> None:
    with pytest.raises(
        TooManyRequests, match=r"^60 s at the declared rates times 500000 are .* load shorter or slower$"
    ):
        planned(Timing(1, rates("0s:0,60s:1000000")))


def test_kinds_of_arrivals() -> None:
    assert [unevenness(text) for text in ("poisson", "constant", "bursts", "bursts:5", "bursts:.5")] == [
        1,
        0,
        3,
        5,
        0.5,
    ]
    for text in (
        "",
        "Poisson",
        "bursts:",
        "bursts:0",
        "bursts:101",
        "bursts:inf",
        "bursts:-1",
        "constant:2",
        "bursts:1e1",
    ):
        with pytest.raises(TimingError, match=r"^'.*' is not allowed; poisson, constant, bursts or bursts:CV, .*$"):
            unevenness(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'' is no point; write TIME:FACTOR as 30s:2, points separated by commas"),
        ("0s:1", "'0s:1' is one point, and nothing moves; give two or more, or --rate-scale"),
        ("0s:1 30s:50", "'1 30s:50' is no factor; a number from 0 to 1e+06, as in 0s:2"),
        ("0s:1,30:50", "'30' has no unit; write 30ms"),
        ("0s:1,30s:-2", "'-2' is no factor; a number from 0 to 1e+06, as in 30s:2"),
        ("0s:1,30s:inf", "'inf' is no factor; a number from 0 to 1e+06, as in 30s:2"),
        ("0s:1,30s:2000000", "'2000000' is no factor; a number from 0 to 1e+06, as in 30s:2"),
        ("30s:1,20s:2", "20s comes after 30s; points go forward in time"),
        ("0s:1,9s:1,9s:2,9s:3", "9s is given three times; a step is two points at one time"),
        ("0s:0,9s:0", "'0s:0,9s:0' sends nothing; at least one factor > 0"),
    ],
)
def test_nonsense_about_rates_is_refused_in_one_line(text: str, told: str) -> None:
    with pytest.raises(TimingError) as caught:
        rates(text)
    assert str(caught.value) == told
