"""Samples beside something else: all of them, also the last, and what goes wrong is not lost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from observe import window
from observe.recorder import Recorder
from observe.ring import Ring, RingError
from observe.series import Series
from observe.sources.base import SourceError


class Counting:
    """A source that tells how often it was read, from the second time on."""

    name = "counting"

    def __init__(self) -> None:
        self.reads = count()

    def read(self) -> Mapping[str, float]:
        if (number := next(self.reads)) == 0:
            raise SourceError("not yet")
        return {"reads_total": number}


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
    kept = window.read(tmp_path)
    assert list(kept.times) == list(taken.times) and kept.latest("reads_total") == reads - 1


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
