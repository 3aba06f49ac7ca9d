"""What holds of the simulated batcher whatever its settings, its load and its luck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from batcher_cases import MS, cost, observed
from hypothesis import given
from hypothesis import strategies as st

from config_gen.batching import Batching, QueuePolicy
from config_gen.simulation.batcher import Arrived, Race, simulate

policies = st.builds(
    QueuePolicy,
    st.one_of(st.none(), st.integers(1, 300).map(lambda ms: ms * MS)),
    st.sampled_from(("reject", "delay")),
    st.one_of(st.none(), st.integers(1, 12)),
)


@st.composite
def batchings(draw: st.DrawFn) -> Batching:
    most = draw(st.integers(1, 8))
    levels = tuple(draw(st.lists(policies, max_size=3)))
    return Batching(
        most,
        draw(st.integers(1, 3)),
        draw(st.sampled_from((0, 5 * MS, 60 * MS))),
        tuple(sorted(draw(st.sets(st.integers(1, most), max_size=2)))),
        levels,
        draw(st.integers(1, len(levels))) if levels else 1,
        draw(policies),
    )


@st.composite
def loads(draw: st.DrawFn) -> list[Arrived]:
    one = st.tuples(st.integers(0, 1500 * MS), st.integers(0, 4), st.integers(1, 3))
    rows = draw(st.lists(one, max_size=60))
    return [Arrived(time, level, size, tag=i) for i, (time, level, size) in enumerate(sorted(rows))]


races = st.builds(Race, st.floats(0, 1), st.floats(0, 0.3), st.integers(0, 9))


def fitting(batching: Batching, load: Sequence[Arrived]) -> list[Arrived]:
    """The front end refuses requests that are larger than any batch."""
    return [request for request in load if request.size <= batching.max_batch_size]


def level_of(request: Arrived, batching: Batching) -> int:
    if not batching.levels:
        return 1
    return request.level if 1 <= request.level <= len(batching.levels) else batching.default_level


def policy_of(request: Arrived, batching: Batching) -> QueuePolicy:
    return batching.levels[level_of(request, batching) - 1] if batching.levels else batching.default_policy


@given(batchings(), loads(), races)
def test_every_request_ends_once_and_for_a_reason(batching: Batching, load: list[Arrived], race: Race) -> None:
    load = fitting(batching, load)
    ends, executions = observed(batching, load, race)
    assert sorted(request.tag for request, _, _ in ends) == [request.tag for request in load]  # type: ignore[type-var]
    began = {request.tag: execution for execution in executions for request in execution.batch}
    assert sum(len(execution.batch) for execution in executions) == len(began)
    for request, moment, reason in ends:
        policy = policy_of(request, batching)
        assert (reason == "") == (request.tag in began)
        if reason == "":
            assert moment == began[request.tag].ended
        elif reason == "timeout":
            assert policy.timeout is not None and policy.action == "reject"
            assert policy.timeout <= moment - request.at
        else:
            assert reason == "queue full" and policy.max_queue is not None and moment == request.at


@given(batchings(), loads(), races)
def test_batches_fit_and_instances_are_not_exceeded(batching: Batching, load: list[Arrived], race: Race) -> None:
    _, executions = observed(batching, fitting(batching, load), race)
    for execution in executions:
        assert 1 <= execution.rows <= batching.max_batch_size
        running = sum(other.began <= execution.began < other.ended for other in executions)
        assert running <= batching.instances


@given(batchings(), loads(), races)
def test_within_a_level_the_order_is_kept(batching: Batching, load: list[Arrived], race: Race) -> None:
    """Except where a timeout sends some to the back."""
    _, executions = observed(batching, fitting(batching, load), race)
    order = defaultdict(list)
    for execution in executions:
        for request in execution.batch:
            if policy_of(request, batching).action == "reject":
                order[level_of(request, batching)].append(request.tag)
    assert all(tags == sorted(tags) for tags in order.values())  # type: ignore[type-var]


@given(batchings(), loads(), races)
def test_no_request_overtakes_one_of_a_higher_level(batching: Batching, load: list[Arrived], race: Race) -> None:
    load = fitting(batching, load)
    ends, executions = observed(batching, load, race)
    if not batching.levels:
        return
    began = {request.tag: execution.began for execution in executions for request in execution.batch}
    gone = {request.tag: moment for request, moment, reason in ends if reason}
    for execution in executions:
        lowest = max(level_of(request, batching) for request in execution.batch)
        for other in load:
            if level_of(other, batching) < lowest and other.at < execution.began:
                assert began.get(other.tag, gone.get(other.tag, 0)) <= execution.began


@given(batchings(), loads())
def test_without_delay_no_instance_idles_while_requests_wait(batching: Batching, load: list[Arrived]) -> None:
    """When the batcher never comes too early, that is."""
    batching = Batching(
        batching.max_batch_size, batching.instances, 0, batching.preferred, batching.levels, batching.default_level
    )
    _, executions = observed(batching, fitting(batching, load))
    for execution in executions:
        waited = min(request.at for request in execution.batch)
        if waited < execution.began:
            for moment in {waited, *(other.ended for other in executions if waited <= other.ended < execution.began)}:
                assert sum(other.began <= moment < other.ended for other in executions) == batching.instances


@given(batchings(), loads(), races)
def test_it_is_the_same_every_time(batching: Batching, load: list[Arrived], race: Race) -> None:
    load = fitting(batching, load)
    assert simulate(batching, load, cost, race) == simulate(batching, load, cost, race)
