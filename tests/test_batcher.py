"""How the simulated batcher makes batches: as simpler ones where settings are simple, and as the real one where not."""

from __future__ import annotations

from collections import deque

from batcher_cases import LUCKY, MS, UNLUCKY, at, cost, observed, shape
from hypothesis import given
from hypothesis import strategies as st

from config_gen.batching import Batching, QueuePolicy
from config_gen.simulation.batcher import Arrived, Race

moments = st.lists(st.integers(0, 1_500_000).map(lambda µs: 1000 * µs), max_size=60).map(sorted)


@given(moments, st.integers(1, 9), st.integers(1, 3), st.floats(0, 1))
def test_without_delay_an_instance_takes_what_waits(times: list[int], most: int, instances: int, lost: float) -> None:
    _, executions = observed(Batching(most, instances), [Arrived(time, 0) for time in times], Race(lost, 0))
    expected = []
    free, queue = [0] * instances, deque(times)
    while queue:
        free.sort()
        began = max(free[0], queue[0])
        # Requests of one moment come one by one: to an instance that waits, the first of them goes alone.
        waited = began == free[0] > queue[0]
        rows = min(most, sum(time < began for time in queue)) if waited else 1
        batch = [Arrived(queue.popleft(), 0) for _ in range(max(1, rows))]
        free[0] = began + round(cost(batch))
        expected.append((began, len(batch)))
    assert [(execution.began, execution.rows) for execution in executions] == expected


@given(moments, st.integers(1, 9), st.integers(1, 200_000))
def test_a_delay_gathers_up_to_the_largest_size(times: list[int], most: int, delay: int) -> None:
    """With an instance for each request, a batch goes when it is full or its first has waited so long."""
    _, executions = observed(
        Batching(most, instances=80, delay=delay * 1000), [Arrived(time, 0) for time in times], LUCKY
    )
    expected = []
    queue = deque(times)
    while queue:
        first = queue[0]
        rows = [time for time in queue if time < first + delay * 1000][:most] or [first]
        expected.append((rows[-1] if len(rows) == most else first + delay * 1000, len(rows)))
        for _ in rows:
            queue.popleft()
    assert [(execution.began, execution.rows) for execution in executions] == expected


def test_a_preferred_size_without_delay_keeps_batches_small() -> None:
    """Whoever waits is grouped by the largest preferred size as they come, though more would fit."""
    times = at(0, *range(1, 8))
    assert shape(observed(Batching(8), times)[1]) == [(0, 1), (45, 7)]
    assert shape(observed(Batching(8, preferred=(2,)), times)[1]) == [(0, 1), (45, 2), (95, 2), (145, 2), (195, 1)]


def test_a_preferred_size_ends_the_delay() -> None:
    batching = Batching(8, delay=100 * MS, preferred=(4,))
    assert shape(observed(batching, at(0, 10, 20, 30, 200))[1]) == [(30, 4), (300, 1)]
    assert shape(observed(batching, at(0, 10, 20))[1]) == [(100, 3)]


def test_batches_that_outwaited_the_delay_are_merged_by_the_instance_that_takes_them() -> None:
    """One of five that came to be as a preferred size may grow by one, and the three behind it."""
    batching = Batching(8, delay=10 * MS, preferred=(4,))
    assert shape(observed(batching, at(0, *range(20, 28)))[1]) == [(10, 1), (55, 8)]
    assert shape(observed(batching, at(0, *range(20, 29)))[1]) == [(10, 1), (55, 5), (120, 4)]


def test_rows_count_not_requests() -> None:
    requests = [Arrived(0, 0), *(Arrived(MS * (1 + i), 0, size=3) for i in range(4))]
    assert shape(observed(Batching(8), requests)[1]) == [(0, 1), (45, 6), (115, 6)]


def test_a_batch_that_waited_for_an_instance_beyond_the_delay_takes_all() -> None:
    """Before that it stops at the preferred size."""
    batching = Batching(8, delay=20 * MS, preferred=(4,), levels=(QueuePolicy(),))
    assert shape(observed(batching, at(0, 30, 31, 32, 33, 34))[1]) == [(20, 1), (65, 5)]
    assert shape(observed(batching, at(0, 60, 61, 62, 63, 64))[1]) == [(20, 1), (65, 4), (125, 1)]


def test_a_scheduled_batch_grows_only_where_the_batcher_looks_before_an_instance_takes_it() -> None:
    """Arrivals alone do not make it look: it waits for a preferred size."""
    delay, preferred = Batching(8, delay=10 * MS), Batching(8, delay=10 * MS, preferred=(4,))
    assert shape(observed(delay, at(0, 20, 50), LUCKY)[1]) == [(10, 1), (55, 1), (100, 1)]
    assert shape(observed(delay, at(0, 20, 50), UNLUCKY)[1]) == [(10, 1), (55, 2)]
    assert shape(observed(preferred, at(0, 20, 21, 22, 23, 50), LUCKY)[1]) == [(10, 1), (55, 4), (115, 1)]
    assert shape(observed(preferred, at(0, 20, 21, 22, 23, 50), UNLUCKY)[1]) == [(10, 1), (55, 5)]


def test_the_delay_counts_from_the_oldest_of_all_levels() -> None:
    batching = Batching(8, delay=60 * MS, levels=(QueuePolicy(), QueuePolicy()))
    assert shape(observed(batching, [*at(0, level=2), *at(30, level=1)])[1]) == [(60, 2)]
