"""Samples beside something else: all of them, also the last, and what goes wrong is not lost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from observe import window
from observe.recorder import Recorder, ticks
from observe.ring import Ring, RingError
from observe.series import Series
from observe.sources.base import SourceError


class Counting:
    """A source that tells how often it was read, from the second time on."""

    name = "counting"

    def __init__(self) -> None:
        self.reads = count()
        self.closed = 0

    def read(self) -> Mapping[str, float]:
        if (number := next(self.reads)) == 0:
            raise SourceError("not yet")
        return {"reads_total": number}

    def close(self) -> None:
        self.closed += 1


def test_all_samples_until_the_end_are_in_the_window_and_in_the_ring(tmp_path: Path) -> None:
    source = Counting()
    with Recorder([source], 10**6, Ring(tmp_path, 2**20)) as recorder:
        while len(recorder.window.times) < 5:
            pass
    taken = recorder.window
    reads = next(source.reads)
    assert len(taken.times) == reads and (taken.times[1:] > taken.times[:-1]).all()
    assert list(taken.values[Series("reads_total")][1:]) == list(range(1, reads))
    assert recorder.said == ["counting is missing: not yet; left out until it is there"]
    assert source.closed == 1
    kept = window.read(tmp_path)
    assert list(kept.times) == list(taken.times) and kept.latest("reads_total") == reads - 1


class Clock:
    """Moves only while somebody waits, who is told to end `at` it, in ns."""

    def __init__(self, at: int) -> None:
        self.now, self.at, self.ended = 5000, 5000 + at, False

    def time_ns(self) -> int:
        return self.now

    monotonic_ns = time_ns

    def is_set(self) -> bool:
        return self.ended

    def wait(self, seconds: float) -> None:
        until = self.now + round(seconds * 1e9)
        self.ended = until >= self.at
        self.now = min(until, self.at)


@pytest.mark.parametrize(
    ("ends", "duration", "expected"),
    [
        (2_049, None, [0, 1_000, 2_000]),  # 49 ns after the last one, cores are as busy as chance has it
        (2_500, None, [0, 1_000, 2_000, 2_500]),
        (9_999, 2_400, [0, 1_000, 2_000]),
    ],
)
def test_the_last_sample_is_no_younger_than_half_an_interval(
    monkeypatch: pytest.MonkeyPatch, ends: int, duration: int | None, expected: list[int]
) -> None:
    clock = Clock(ends)
    monkeypatch.setattr("observe.recorder.time", clock)
    assert [now - 5000 for now in ticks(1_000, duration, clock)] == expected  # type: ignore[arg-type]


def test_a_block_that_is_over_at_once_has_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0)
    clock.ended = True
    monkeypatch.setattr("observe.recorder.time", clock)
    assert list(ticks(1_000, None, clock)) == [5000]  # type: ignore[arg-type]


def test_a_ring_that_takes_no_more_is_told_at_the_end(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 2**20)
    ring.close()
    (tmp_path / "samples-00000001.jsonl").mkdir()  # where the ring would begin
    with pytest.raises(RingError, match="the samples until now are kept"), Recorder([Counting()], 10**6, ring):
        pass


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_ring(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 2**20)
    (tmp_path / "samples-00000001.jsonl").mkdir()
    with pytest.raises(KeyError), Recorder([Counting()], 10**6, ring):
        raise KeyError("the block's own")


def test_what_a_source_raises_ends_the_samples_and_not_what_was_done(tmp_path: Path) -> None:
    class Broken(Counting):
        def read(self) -> Mapping[str, float]:
            raise OverflowError("of its own")

    with Recorder([Broken()], 10**6, Ring(tmp_path, 2**20)) as recorder:
        pass
    assert recorder.said == ["no more samples: OverflowError: of its own"]
