"""The simulated batcher against the real Triton, whose models sleep: what it predicts from when requests were sent.

What depends on the machine and not on the batcher is measured in the same run: how long executions took, and how often
the batcher looked before an instance waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from statistics import fmean, median
from typing import NamedTuple

import pytest
from batcher_measured import MS, Compared, compare, executions, idle_gaps, joined_share, lost_share, measured_cost
from sleeping_triton import Answer, Client, add_sleeper, neighbours, triton

from config_gen.batching import Batching, QueuePolicy
from config_gen.simulation.batcher import POLL, Alone, Arrived, Batcher, Race, simulate
from config_gen.simulation.events import Events

BASE, ROW = 80, 10  # ms an execution sleeps, and for each row
SECONDS = 22.0
ATTEMPTS = 3  # a setting that missed a bar is measured again: the machine may have stood still for a moment
CLOSED_SECONDS, CLOSED_BASE = 10.0, 20


class Setting(NamedTuple):
    batching: Batching
    rate: float  # requests in a second
    levels: tuple[int, ...] = (0,)  # drawn from for each request
    sizes: tuple[int, ...] = (1,)


TWO = (QueuePolicy(), QueuePolicy())
HIGH_AND_LOW = (1, 1, 2, 2, 2)
SETTINGS = {
    "plain": Setting(Batching(8), 30),
    "plain, two instances": Setting(Batching(8, 2), 55),
    "delay": Setting(Batching(8, delay=60 * MS), 25),
    "delay, two instances": Setting(Batching(8, 2, delay=80 * MS), 45),
    "preferred": Setting(Batching(8, preferred=(2, 4)), 22),
    "delay, preferred": Setting(Batching(8, delay=80 * MS, preferred=(4,)), 25),
    "long delay, preferred": Setting(Batching(8, delay=160 * MS, preferred=(4, 8)), 23),
    "several rows": Setting(Batching(8, delay=60 * MS, preferred=(6,)), 15, (0,), (1, 2, 3)),
    "levels": Setting(Batching(8, levels=TWO), 26, HIGH_AND_LOW),
    "levels, two instances": Setting(Batching(8, 2, levels=TWO), 55, HIGH_AND_LOW),
    "levels, delay": Setting(Batching(8, delay=60 * MS, levels=TWO), 24, HIGH_AND_LOW),
    "levels, default": Setting(Batching(8, levels=TWO, default_level=2), 26, (1, 0, 7)),
    "bound": Setting(Batching(8, default_policy=QueuePolicy(max_queue=40)), 26),
    "bound, two instances": Setting(Batching(8, 2, default_policy=QueuePolicy(max_queue=10)), 75),
    "levels, bounds, two instances": Setting(
        Batching(8, 2, levels=(QueuePolicy(max_queue=20), QueuePolicy(max_queue=4))), 70, (1, 2)
    ),
    "timeout": Setting(Batching(8, default_policy=QueuePolicy(200 * MS)), 45),
    "timeout delays": Setting(Batching(8, default_policy=QueuePolicy(150 * MS, "delay")), 24),
    "levels, timeout": Setting(Batching(8, levels=(QueuePolicy(), QueuePolicy(240 * MS))), 42, HIGH_AND_LOW),
    "levels, timeouts, delay": Setting(
        Batching(8, delay=40 * MS, levels=(QueuePolicy(300 * MS, "delay"), QueuePolicy(240 * MS))), 35, HIGH_AND_LOW
    ),
}
STALLING = {f"stall {i}": Batching(1, levels=TWO) for i in range(4)}
OVERLOADED = Setting(Batching(8, default_policy=QueuePolicy(max_queue=8)), 60)
IMPATIENT = Batching(8, delay=60 * MS, default_policy=QueuePolicy(30 * MS))
CLOSED = {**STALLING, "no levels": Batching(1), "levels, two": Batching(1, 2, levels=TWO)}


def prefetches(batching: Batching) -> bool:
    return not batching.levels and batching.default_policy == QueuePolicy()


def schedule(setting: Setting, seconds: float, seed: str) -> list[tuple[float, int, int]]:
    chance, planned, at = Random(seed), [], 0.2
    while (at := at + chance.expovariate(setting.rate)) < seconds:
        planned.append((at, chance.choice(setting.levels), chance.choice(setting.sizes)))
    return planned


def directory(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_")


async def load(address: str, names: Sequence[str], attempt: int) -> dict[str, list[Answer]]:
    client = Client(address)
    await asyncio.gather(*(client.ask(directory(name)) for name in names))
    plans = {name: schedule(SETTINGS[name], SECONDS, f"{name}/{attempt}") for name in names}
    found = await asyncio.gather(*(client.open_loop(directory(name), plan) for name, plan in plans.items()))
    await client.channel.close()
    return dict(zip(names, found, strict=True))


def races(found: dict[str, list[Answer]]) -> dict[str, Race]:
    """How often the batcher looked too early: of each model, and where batches are prefetched that of "delay"."""
    prefetching = Race(joined_share(found["delay"], SETTINGS["delay"].batching))
    batchings = {name: SETTINGS[name].batching for name in found}
    return {
        name: prefetching if prefetches(batching) else Race(lost_share(found[name], batching.delay))
        for name, batching in batchings.items()
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("batchers")
    for name, setting in SETTINGS.items():
        add_sleeper(folder / "models", directory(name), setting.batching, BASE, ROW)
    for name, batching in CLOSED.items():
        add_sleeper(folder / "models", directory(name), batching, CLOSED_BASE, 0)
    add_sleeper(folder / "models", "overloaded", OVERLOADED.batching, BASE, ROW)
    add_sleeper(folder / "models", "impatient", IMPATIENT, BASE, ROW)
    with triton(folder / "models", folder / "log") as address:
        yield address


@pytest.fixture(scope="module")
def compared(server: str) -> dict[str, list[Compared]]:
    """All settings, loaded at the same time; those that miss a bar again."""
    attempts: dict[str, list[Compared]] = {name: [] for name in SETTINGS}
    overhead = 0.0
    for attempt in range(ATTEMPTS):
        names = [name for name, before in attempts.items() if not before or before[-1].misses]
        if not names:
            break
        found = asyncio.run(load(server, list(dict.fromkeys(("delay", *names))), attempt))
        overhead = overhead or median(idle_gaps(found["plain"], 2 * MS))
        chances = races(found)
        for name in names:
            cost = measured_cost(found[name], ROW * MS, overhead)
            done = compare(name, SETTINGS[name].batching, found[name], cost, chances[name])
            attempts[name].append(done)
            print(done, *done.misses, sep="  ")
    return attempts


@pytest.mark.parametrize("name", SETTINGS)
def test_the_simulation_does_what_triton_does(compared: dict[str, list[Compared]], name: str) -> None:
    assert not compared[name][-1].misses, "\n".join(f"{one}  {one.misses}" for one in compared[name])


# Closed loops, and loads that a batcher does not bear


class Loop(NamedTuple):
    rate: float  # answers in a second
    stalls: list[int]  # ns that an instance waited though requests did
    executions: int


def loop(answers: Sequence[Answer]) -> Loop:
    answered = [one for one in answers if not one.reason]
    span = max(one.ended for one in answered) - min(one.sent for one in answered)
    stalls = [gap for gap in idle_gaps(answers, 0) if gap > POLL // 2]
    return Loop(len(answered) / span * 1e9, stalls, len(executions(answers)))


async def load_to_the_end(address: str) -> dict[str, list[Answer]]:
    """Closed loops of two users, of one who is refused, and beside them a model that is offered more than it can do."""
    client = Client(address)
    await asyncio.gather(*(client.ask(directory(name)) for name in CLOSED))
    loads = {name: client.closed_loop(directory(name), 2, CLOSED_SECONDS) for name in CLOSED}
    loads["overloaded"] = client.open_loop("overloaded", schedule(OVERLOADED, CLOSED_SECONDS, "overloaded"))
    loads["impatient"] = client.closed_loop("impatient", 1, CLOSED_SECONDS / 2)
    found = await asyncio.gather(*loads.values())
    await client.channel.close()
    return dict(zip(loads, found, strict=True))


@pytest.fixture(scope="module")
def ends(server: str) -> dict[str, list[Answer]]:
    with neighbours():
        return asyncio.run(load_to_the_end(server))


@pytest.fixture(scope="module")
def loops(ends: dict[str, list[Answer]]) -> dict[str, Loop]:
    return {name: loop(ends[name]) for name in (*CLOSED, "overloaded")}


def simulated_rate(batching: Batching, work: float, race: Race) -> float:
    """Answers a second to two users that ask again at once, of executions of `work` ns."""
    events, span = Events(), 300 * 1000 * MS
    count = 0

    def ended(request: Arrived, moment: int, reason: str) -> None:
        nonlocal count
        count += 1
        batcher.submit(Arrived(moment, 1))

    batcher = Batcher(events, batching, Alone(events, lambda batch: work), ended, race)
    for user in range(2):
        events.at(user, partial(batcher.submit, Arrived(user, 1)))
    events.run(span)
    return count / span * 1e9


def test_priority_levels_stall_closed_loops_as_simulated(loops: dict[str, Loop]) -> None:
    """Two users of a model that runs one request at a time: one runs, one waits, and now and then nobody wakes it."""
    plain = loops["no levels"]
    assert not plain.stalls
    own = 1e9 / plain.rate
    assert simulated_rate(CLOSED["no levels"], own, Race()) == pytest.approx(plain.rate, rel=0.01)
    stalling = [loops[name] for name in STALLING]
    stalls = [gap for loop in stalling for gap in loop.stalls]
    late = len(stalls) / sum(loop.executions for loop in stalling)
    print(f"without levels {plain.rate:.1f}/s, with {[round(loop.rate, 1) for loop in stalling]}, late {late:.3f}")
    assert stalls
    # The batcher waits POLL from when it looked: when the one that runs began, or when it ended.
    assert all(POLL - CLOSED_BASE * MS - 30 * MS < gap < POLL + 50 * MS for gap in stalls)
    rate = fmean(loop.rate for loop in stalling)
    assert rate < 0.98 * plain.rate
    assert simulated_rate(CLOSED["stall 0"], own, Race(0.5, late)) == pytest.approx(rate, rel=0.1)


def test_a_second_instance_does_not_stall(loops: dict[str, Loop]) -> None:
    two = loops["levels, two"]
    assert not two.stalls and two.rate > 1.8 * loops["no levels"].rate


def test_a_bound_without_prefetching_breaks_down_under_overload(loops: dict[str, Loop]) -> None:
    """Requests that are refused wake nobody: with the queue full, a lost wake-up costs the rest of POLL."""
    capacity = OVERLOADED.batching.max_batch_size / (BASE + ROW * OVERLOADED.batching.max_batch_size) * 1e3
    real = loops["overloaded"]
    assert real.stalls and real.rate < 0.85 * capacity
    arrivals = [Arrived(int(at * 1e9), 0) for at, _, _ in schedule(OVERLOADED, CLOSED_SECONDS, "overloaded")]
    ends = simulate(OVERLOADED.batching, arrivals, lambda batch: (BASE + ROW * len(batch)) * MS, Race())
    answered = sum(not reason for _, _, reason in ends)
    print(f"overloaded: {real.rate:.1f}/s of {capacity:.0f}/s, simulated {answered / CLOSED_SECONDS:.1f}/s")
    assert answered / CLOSED_SECONDS < 0.85 * capacity


def test_a_delay_longer_than_the_timeout_refuses_at_the_poll(ends: dict[str, list[Answer]]) -> None:
    """At the timeout is refused only who comes before the batcher waits for a request: the first, or who is quick."""
    assert {one.reason for one in ends["impatient"]} == {"timeout"}
    waits = [round((one.ended - one.sent) / MS) for one in ends["impatient"]]
    late = [wait for wait in waits if wait > 100]
    assert late == [pytest.approx(POLL / MS, abs=40)] * len(late) and len(late) > 0.7 * len(waits), waits
