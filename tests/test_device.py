"""A device that executions share, against a brute-force simulation in small steps of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_gen.simulation.device import COLD, TEAM, Shared
from config_gen.simulation.events import Events


def ends(capacity: float, jobs: list[tuple[int, int, float]]) -> list[int]:
    """Moments at which jobs (arrival, work, width) are done."""
    events = Events()
    device, found = Shared(events, capacity), [0] * len(jobs)

    def start(at: int) -> None:
        def done() -> None:
            found[at] = events.now

        device.begin(jobs[at][1], jobs[at][2], done)

    for at, (arrival, _, _) in enumerate(jobs):
        events.at(arrival, lambda at=at: start(at))
    events.run()
    return found


def stepped(capacity: float, jobs: list[tuple[int, int, float]], step: int) -> list[int]:
    """The same by giving each running job its share of every `step` ns."""
    left, found, now = [float(work) for _, work, _ in jobs], [0] * len(jobs), 0
    while any(value > 0 for value in left):
        running = [at for at, (arrival, _, _) in enumerate(jobs) if arrival <= now and left[at] > 0]
        asked = sum(jobs[at][2] for at in running)
        for at in running:
            left[at] -= step * min(1.0, capacity / asked)
            if left[at] <= 0:
                found[at] = now + step
        now += step
    return found


job = st.tuples(st.integers(0, 3000), st.integers(1, 3000), st.sampled_from([1.0, 2.0]))


@given(st.sampled_from([1.0, 2.0, 4.0]), st.lists(job, min_size=1, max_size=6))
def test_all_slow_down_alike_once_more_is_asked_for_than_there_is(
    capacity: float, jobs: list[tuple[int, int, float]]
) -> None:
    for ours, theirs in zip(ends(capacity, jobs), stepped(capacity, jobs, 1), strict=True):
        assert abs(ours - theirs) <= 2 * len(jobs)


def test_an_execution_alone_takes_its_work_and_two_that_fit_do_not_meet() -> None:
    assert ends(2.0, [(0, 1000, 2.0)]) == [1000]
    assert ends(2.0, [(0, 1000, 1.0), (0, 700, 1.0)]) == [1000, 700]


def test_two_that_each_want_everything_take_twice_as_long() -> None:
    assert ends(2.0, [(0, 1000, 2.0), (0, 1000, 2.0)]) == [2000, 2000]
    # 500 alone, then half speed: the second ends its 300 at 1100, when the first has 200 left.
    assert ends(2.0, [(0, 1000, 2.0), (500, 300, 2.0)]) == [1300, 1100]


def test_a_card_in_time_slices_pays_for_beginning_beside_another() -> None:
    events, found = Events(), []
    device = Shared(events, 1.0, switch=400)
    device.begin(1000, 1.0, lambda: found.append(("first", events.now)))
    device.begin(1000, 1.0, lambda: found.append(("second", events.now)))
    events.run()
    assert found == [("first", 2000), ("second", 2400)]


def test_errands_go_first_and_a_team_waits_for_the_core_it_lost() -> None:
    events, found = Events(), []
    device = Shared(events, 2.0)
    device.begin(100_000, 2.0, lambda: found.append(("team", events.now)))
    for _ in range(2):  # long enough before that it is warm
        events.at(20_000, lambda: device.errand(1000 / COLD, lambda: found.append(("errand", events.now))))
    events.run()
    # Cold by what the team has not yet warmed; both errands fit beside each other and leave no core.
    [(first, at), (second, too), (last, end)] = found
    assert (first, second, last) == ("errand", "errand", "team")
    assert at == too and 20_990 < at <= 21_001
    assert end == 100_000 + (at - 20_000)


def test_one_errand_leaves_a_team_of_two_little_of_the_other_core() -> None:
    events, found = Events(), []
    device = Shared(events, 2.0)
    device.begin(100_000_000, 2.0, lambda: found.append(events.now))
    events.at(50_000_000, lambda: device.errand(10_000_000, lambda: None))
    events.run()
    assert found == [pytest.approx(110_000_000 - TEAM * 0.5 * 10_000_000, abs=2)]


def test_single_threads_wait_for_nobody_and_share_what_an_errand_leaves() -> None:
    events, found = Events(), []
    device = Shared(events, 2.0)
    for _ in range(2):
        device.begin(100_000_000, 1.0, lambda: found.append(events.now))
    events.at(50_000_000, lambda: device.errand(10_000_000, lambda: None))
    events.run()
    assert found == [pytest.approx(105_000_000, abs=2)] * 2


def test_single_threads_get_all_that_errands_leave() -> None:
    events, found = Events(), []
    device = Shared(events, 4.0)
    for _ in range(2):
        device.begin(100_000_000, 1.0, lambda: found.append(events.now))
    for _ in range(3):  # one core is left for the two: half speed for 10 ms
        events.at(50_000_000, lambda: device.errand(10_000_000, lambda: None))
    events.run()
    assert found == [pytest.approx(105_000_000, abs=2)] * 2


def test_what_fits_beside_an_errand_does_not_notice_it() -> None:
    events, found = Events(), []
    device = Shared(events, 2.0)
    device.begin(50_000_000, 1.0, lambda: found.append(events.now))
    events.at(20_000_000, lambda: device.errand(10_000_000, lambda: found.append(events.now)))
    events.run()
    assert found == [30_000_000, 50_000_000]


def test_after_a_pause_work_takes_longer_and_less_so_when_others_kept_it_warm() -> None:
    events, found = Events(), []
    device = Shared(events, 2.0)

    def timed(at: int, work: int, cold: float) -> None:
        events.at(at, lambda: device.begin(work, 1.0, lambda: found.append(events.now - at), cold))

    timed(0, 4_000_000, 2.0)  # from cold: twice its time, 8 ms, after which it is at 0.8
    timed(8_000_000, 1_000_000, 2.0)  # 1.2 times
    timed(500_000_000, 4_000_000, 2.0)  # cold again
    timed(600_000_000, 20_000_000, 1.0)
    timed(635_000_000, 1_000_000, 3.0)  # warm, and 15 ms of the 30 that make it cold
    events.run()
    assert found == [8_000_000, pytest.approx(1_200_000, abs=2), 8_000_000, 20_000_000, pytest.approx(2_000_000, abs=2)]


def test_busy_is_what_was_in_use() -> None:
    events = Events()
    device = Shared(events, 2.0)
    device.begin(1000, 1.0, lambda: None)
    events.at(4000, lambda: device.begin(500, 2.0, lambda: None))
    events.run()
    assert device.busy == 1000 * 1 + 500 * 2


def test_limited_executions_beyond_the_most_wait_in_their_order_and_others_do_not() -> None:
    events, found = Events(), []
    device = Shared(events, 10.0, most=2)
    for name in ("first", "second", "third", "fourth"):
        place = device.place(1.0, limited=True)
        place.admit(
            lambda ended, place=place: place.begin(1000, ended), lambda name=name: found.append((name, events.now))
        )
    device.place(1.0).begin(1500, lambda: found.append(("free", events.now)))
    events.run()
    assert found == [("first", 1000), ("second", 1000), ("free", 1500), ("third", 2000), ("fourth", 2000)]
