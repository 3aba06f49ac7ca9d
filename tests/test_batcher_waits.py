"""Who waits how long in the simulated batcher: levels, bounds, timeouts, and the race at the end of an execution."""

from __future__ import annotations

from functools import partial

import pytest
from batcher_cases import LUCKY, MS, UNLUCKY, at, observed, shape

from config_gen.batching import Batching, QueuePolicy
from config_gen.simulation.batcher import POLL, Alone, Arrived, Batcher, Race, simulate
from config_gen.simulation.events import Events


def test_a_level_that_is_not_declared_is_the_default() -> None:
    batching = Batching(1, levels=(QueuePolicy(), QueuePolicy(), QueuePolicy()), default_level=2)
    load = [Arrived(i * MS, level) for i, level in enumerate((1, 3, 0, 7, 2, 1))]
    _, executions = observed(batching, load)
    assert [request.level for execution in executions for request in execution.batch] == [1, 1, 0, 7, 2, 3]


def test_a_batch_may_mix_levels() -> None:
    batching = Batching(4, levels=(QueuePolicy(), QueuePolicy()))
    load = [*at(0, 1, 2, 3, level=2), *at(4, 5, level=1)]
    _, executions = observed(batching, load)
    assert [request.level for request in executions[1].batch] == [1, 1, 2, 2]


def test_a_bound_counts_who_waits_in_its_own_queue_and_not_who_runs() -> None:
    batching = Batching(1, levels=(QueuePolicy(max_queue=2), QueuePolicy(max_queue=1)))
    load = [*at(0, 1, 2, 3, level=1), *at(4, 5, level=2)]
    ends, _ = observed(batching, load)
    assert [(request.at / MS, moment / MS) for request, moment, reason in ends if reason] == [(3, 3), (5, 5)]


def blocked(milliseconds: float, timeout: float) -> tuple[float, str]:
    """When and why a request ends that comes at 10 ms behind one that runs so long."""
    policy = QueuePolicy(timeout=round(timeout * MS))
    ends = simulate(Batching(1, default_policy=policy), at(0, 10), lambda batch: milliseconds * MS, LUCKY)
    return next((moment / MS, reason) for request, moment, reason in ends if request.at)


def test_a_timeout_counts_only_when_the_batcher_looks() -> None:
    """As measured with Triton 2.51: 50 ms behind a blocker of 1.5 s end at 1 s, 100 ms behind one of 0.3 s at 0.3 s."""
    assert blocked(1500, 50) == (1000, "timeout")
    assert blocked(300, 100) == (300, "timeout")
    assert blocked(300, 300) == (600, "")


def test_a_timeout_that_delays_sends_to_the_back_of_the_level() -> None:
    policy = QueuePolicy(timeout=30 * MS, action="delay")
    _, executions = observed(Batching(1, default_policy=policy), at(0, 10, 30, 80))
    assert [execution.batch[0].at / MS for execution in executions] == [0, 30, 80, 10]


def test_a_timeout_shorter_than_the_delay_refuses_on_an_idle_instance() -> None:
    rejecting = Batching(8, delay=60 * MS, default_policy=QueuePolicy(30 * MS))
    assert [(moment / MS, reason) for _, moment, reason in observed(rejecting, at(0))[0]] == [(30, "timeout")]
    delaying = Batching(8, delay=60 * MS, default_policy=QueuePolicy(30 * MS, "delay"))
    assert shape(observed(delaying, at(0))[1]) == [(60, 1)]


def test_once_a_timeout_emptied_the_queue_too_few_requests_wake_nobody() -> None:
    """The batcher still waits for the preferred size; as measured with Triton 2.51, one by one they end at its poll."""
    impatient = Batching(8, delay=60 * MS, default_policy=QueuePolicy(30 * MS))
    ends, _ = observed(impatient, at(0, 30, 580))
    assert [(moment / MS, reason) for _, moment, reason in ends] == [
        (30, "timeout"),
        (530, "timeout"),
        (1030, "timeout"),
    ]


# The race at the end of an execution


def test_a_lost_wake_up_is_made_good_by_the_next_arrival() -> None:
    batching = Batching(1, levels=(QueuePolicy(),))
    assert shape(observed(batching, at(0, 10, 70), LUCKY)[1])[1] == (45, 1)
    assert shape(observed(batching, at(0, 10, 70), UNLUCKY)[1])[1] == (70, 1)


def test_a_lost_wake_up_lasts_until_the_poll_where_arrivals_are_refused() -> None:
    batching = Batching(1, default_policy=QueuePolicy(max_queue=1))
    ends, executions = observed(batching, at(0, 10, 70, 80, 90), UNLUCKY)
    assert shape(executions)[1] == (45 + POLL / MS, 1)
    assert [reason for _, _, reason in ends].count("queue full") == 3


def test_a_second_instance_makes_good_what_the_first_lost() -> None:
    batching = Batching(1, instances=2, levels=(QueuePolicy(),))
    _, executions = observed(batching, at(0, 20, 25, 26), Race(lost=1, late=0))
    assert shape(executions)[2:] == [(65, 1), (110, 1)]


@pytest.mark.parametrize("batching", [Batching(1), Batching(8, delay=MS)])
def test_where_batches_are_prefetched_no_wake_up_is_lost(batching: Batching) -> None:
    _, executions = observed(batching, at(0, 10, 70), UNLUCKY)
    assert executions[1].began <= 46 * MS


def closed_loop(batching: Batching, users: int, race: Race) -> tuple[float, float]:
    """Requests in a second and the longest wait in ms, of users that ask again as soon as they are answered."""
    events, waits = Events(), []
    until = 60_000 * MS

    def ended(request: Arrived, moment: int, reason: str) -> None:
        waits.append(moment - request.at)
        if moment < until:
            batcher.submit(Arrived(moment, 1))

    batcher = Batcher(events, batching, Alone(events, lambda batch: 21.7 * MS), ended, race)
    for user in range(users):
        events.at(user, partial(batcher.submit, Arrived(user, 1)))
    events.run(until)
    return len(waits) / 60, max(waits) / MS


def test_priority_levels_stall_a_closed_loop() -> None:
    """Measured with Triton 2.51, a model of 20 ms, two users: 45 requests a second without levels, 24 with them."""
    rate, longest = closed_loop(Batching(1), 2, Race())
    assert rate == pytest.approx(46, rel=0.02) and longest < 45
    rate, longest = closed_loop(Batching(1, levels=(QueuePolicy(), QueuePolicy())), 2, Race())
    assert rate == pytest.approx(24, rel=0.15) and longest > 500
    rate, longest = closed_loop(Batching(1, 2, levels=(QueuePolicy(), QueuePolicy())), 4, Race())
    assert rate == pytest.approx(92, rel=0.1) and longest < 200
