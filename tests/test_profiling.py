"""Measuring what a plan must know of an engine: every number is of what it says it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_models import picture_engine, text_engine
from hypothesis import given
from hypothesis import strategies as st

from builders import profiling
from builders.errors import BuildError
from builders.latency import batches, measure
from builders.profiling import PREPARED, WIDE, coldness, measured_lengths, prepare_cost, profile, resident
from builders.progress import quiet
from builders.runtimes import Runnable
from engines.runner import preparation
from engines.session import constant_inputs
from engines.stamp import Stamp
from loadtest.pictures import picture


@given(st.integers(1, 2000), st.integers(1, 131072))
def test_lengths_reach_from_short_to_longest_without_wide_gaps(typical: int, longest: int) -> None:
    typical = min(typical, longest)
    found = measured_lengths(typical, longest)
    assert found == sorted(set(found)) and {typical, longest} <= set(found) and found[0] <= 8
    assert all(above <= WIDE * below for below, above in pairwise(found))
    assert len(found) < 16


class Counting:
    """A preparation that takes note of what it is given."""

    def __init__(self) -> None:
        self.seen: list[Sequence[object]] = []

    def __call__(self, items: Sequence[object]) -> list[Any]:
        self.seen.append(items)
        return list(items)


def test_items_are_prepared_alone_and_in_full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "PREPARE_SECONDS", 0.0)
    prepare: Any = Counting()
    found = prepare_cost(prepare, ["a", "b", "c"], 4)
    assert {len(items) for items in prepare.seen} == {1, 4}
    assert {item for items in prepare.seen for item in items} == {"a", "b", "c"}
    assert found["batched"] >= 0 and 0 < found["p50"] < 10


def profiled(folder: Path, items: Sequence[Any], typical: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(profiling, "PREPARE_SECONDS", 0.0)
    stamp = Stamp.read(folder)
    engine = Runnable(type("C", (), {"precision": "fp32"}), folder / stamp.file, stamp)  # type: ignore[arg-type]
    monkeypatch.setattr(profiling, "measure", lambda *words, **more: measure(*words, seconds=0, fewest=2))
    return profile(engine, folder, typical, items, lambda b, n: constant_inputs(stamp.inputs, b, n or 8), quiet)


def test_an_engine_of_texts_is_measured_at_every_length_and_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        profiling, "prepare_cost", lambda prepare, items, most: seen.append((items, most)) or {"p50": 1}
    )
    folder = text_engine(tmp_path)
    stamp = Stamp.read(folder)
    found = profiled(folder, (), 6, monkeypatch)
    shapes = {(row["threads"], row["length"], row["batch"]) for row in found["rows"]}
    wanted = {(t, n, b) for t in batches(found["cores"]) for n in (6, 12) for b in batches(stamp.max_batch_size)}
    assert shapes == wanted and len(found["rows"]) == len(wanted)
    [([text], most)] = seen
    tokens = preparation(stamp, folder).one(text)
    assert most == stamp.max_batch_size and 4 <= len(tokens) <= 12  # an example of about the typical length


def test_pictures_are_prepared_as_they_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(profiling, "prepare_cost", lambda prepare, items, most: seen.append(items) or {"p50": 1})
    folder = picture_engine(tmp_path)
    profiled(folder, [np.zeros((40, 40, 3), np.uint8), b"a photograph"], 0, monkeypatch)
    [prepared] = seen
    assert prepared[:2] == [picture(0), picture(1)] and len(set(prepared)) == len(prepared) == PREPARED


def test_runs_after_pauses_are_beside_runs_that_were_long_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own: a run takes 3 ms, 5 after a pause, and and 4 the first 60 and 20 times."""
    now, runs, paused = 0.0, 0, False

    def sleep(seconds: float) -> None:
        nonlocal now, paused, runs
        runs = runs if paused else 0
        now, paused = now + seconds, True

    def run() -> None:
        nonlocal now, runs
        runs += 1
        now += 4e-3 if runs <= (20 if paused else 60) else 5e-3 if paused else 3e-3

    monkeypatch.setattr(profiling.time, "sleep", sleep)
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now)
    assert coldness(run) == pytest.approx(5 / 3)


def test_where_pauses_cost_nothing_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100_000))
    monkeypatch.setattr(profiling.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: 1e-3 * next(times))
    assert coldness(lambda: None) == 1.0


def test_memory_is_that_of_a_process_with_the_engine_in_it(tmp_path: Path) -> None:
    held = resident(text_engine(tmp_path))
    assert 40e6 < held < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_an_engine_that_cannot_be_loaded_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        BuildError, match=r"^--profile: the engine cannot be loaded in a process of its own: .*no engine"
    ):
        resident(tmp_path)
