"""The loop of events: order, what is cancelled, and how far it runs."""

from __future__ import annotations

import pytest

from config_gen.simulation.events import Events


def test_events_run_in_the_order_of_their_moments_and_of_asking() -> None:
    events, seen = Events(), []
    for name, moment in (("late", 20), ("first", 10), ("second", 10)):
        events.at(moment, lambda name=name: seen.append((events.now, name)))  # type: ignore[misc]
    events.run()
    assert seen == [(10, "first"), (10, "second"), (20, "late")]


def test_an_event_may_ask_for_another_at_its_own_moment() -> None:
    events, seen = Events(), []
    events.at(5, lambda: events.at(5, lambda: seen.append(events.now)))
    events.run()
    assert seen == [5] and events.now == 5


def test_what_is_cancelled_neither_runs_nor_counts() -> None:
    events, seen = Events(), []
    events.at(1, lambda: seen.append(1)).cancel()
    assert events.next_at is None and not events.step() and events.now == 0
    events.at(2, lambda: seen.append(2))
    assert events.next_at == 2 and events.step() and seen == [2]


def test_it_runs_up_to_a_moment_and_stands_there() -> None:
    events, seen = Events(), []
    for moment in (1, 2, 3):
        events.at(moment, lambda: seen.append(events.now))
    events.run(2)
    assert seen == [1, 2] and events.now == 2
    events.run(10)
    assert seen == [1, 2, 3] and events.now == 10 and events.next_at is None


def test_the_past_is_over() -> None:
    events = Events()
    events.run(5)
    with pytest.raises(ValueError, match="4 ns is over"):
        events.at(4, lambda: None)
    with pytest.raises(ValueError, match="4 ns is over"):
        events.run(4)
