"""The batch that is worth its latency, the precision that is worth its error, and what is said of both."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from builders.gate import Score
from builders.latency import FEWEST_RUNS, Latency, batches, knee, measure
from builders.precisions import Candidate
from builders.report import choose, gain, verdict

T4 = [(1, 8.0), (8, 22.0), (16, 41.0), (32, 83.0)]  # ms at batch of a common encoder, as users report it


def by_definition(table: list[tuple[int, float]]) -> int:
    """The last batch up to which each step serves what it adds at least a tenth faster than what came before."""
    for last in range(len(table), 0, -1):
        steps = pairwise(table[:last])
        fine = [
            slower <= faster or (more - fewer) * faster * 10 >= 11 * fewer * (slower - faster)
            for (fewer, faster), (more, slower) in steps
        ]
        if all(fine):
            return table[last - 1][0]
    raise AssertionError


def test_a_measured_table_of_a_t4_has_its_knee_where_latency_starts_to_double() -> None:
    assert 8 <= knee(T4) <= 16
    assert knee(T4[:2]) == 8 and knee(T4[:1]) == 1


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([(1, 5.0), (2, 5.0), (4, 5.0), (8, 5.0)], 8),  # flat: the largest costs nothing
        ([(1, 5.0), (2, 10.0), (4, 20.0), (8, 40.0)], 1),  # no item is cheaper in company
        ([(1, 5.0), (2, 5.2), (4, 10.5), (8, 21.0)], 2),
        ([(1, 5.0), (2, 4.0), (4, 3.9)], 4),
        ([(4, 5.0)], 4),
    ],
)
def test_the_knee_of_tables_one_can_see_through(table: list[tuple[int, float]], expected: int) -> None:
    assert knee(table) == expected


@pytest.mark.parametrize("seed", range(200))
def test_the_knee_is_that_of_the_definition(seed: int) -> None:
    random = Random(seed)
    sizes = sorted(random.sample(range(1, 65), random.randint(1, 8)))
    table = [(size, Fraction(random.randint(1, 20) + size * random.randint(0, 20), 4)) for size in sizes]
    exact = [(size, float(taken)) for size, taken in table]
    assert knee(exact) == by_definition(exact)


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (33, [1, 2, 4, 8, 16, 32, 33])]
)
def test_batches_double_up_to_the_largest(largest: int, sizes: list[int]) -> None:
    assert batches(largest) == sizes


class Counted:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.rows = log, name, []  # type: ignore[var-annotated]

    def run(self, inputs: Any) -> dict[str, Any]:
        self.log.append(self.name)
        self.rows.append(len(inputs["x"]))
        return {"y": inputs["x"]}


def test_engines_take_turns_at_every_shape() -> None:
    log: list[str] = []
    sessions = {"a": Counted(log, "a"), "b": Counted(log, "b")}
    found = measure(sessions, [(1, 0), (4, 0)], lambda batch, length: {"x": np.zeros((batch, 2))}, seconds=0)
    assert [(row.batch, row.runs) for row in found["a"]] == [(1, FEWEST_RUNS), (4, FEWEST_RUNS)]
    assert sessions["a"].rows == sessions["b"].rows and set(sessions["a"].rows) == {1, 4}
    turns = "".join(log)
    assert turns.count("ab" * FEWEST_RUNS) == 2
    for rows in found.values():
        for row in rows:
            assert row.p50 <= row.p99 and row.spread >= 0
            assert row.rate == pytest.approx(row.batch / row.p50 * 1e3)


def rows_of(*rates: float) -> list[Latency]:
    """At batches 1, 2 and 4; each next batch serves what it adds faster, so that the knee is the last."""
    return [Latency(2**at, 0, 2**at / rate * 1e3, 0, 0, rate, 9) for at, rate in enumerate(rates)]


FP32 = rows_of(100, 150, 200)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ({"int8": rows_of(200, 300, 500), "fp16": rows_of(100, 150, 260)}, "int8"),
        ({"int8": rows_of(100, 150, 259), "fp16": rows_of(100, 150, 261)}, "fp16"),  # 1.3 times is where worth starts
        ({"int8": rows_of(100, 160, 280), "fp16": rows_of(200, 300, 500)}, "fp16"),  # both are worth it
        ({"int8": rows_of(100, 150, 240)}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_the_fastest_that_passed_and_is_worth_it_is_taken(others: dict[str, list[Latency]], chosen: str) -> None:
    assert choose([*others, "fp32"], {**others, "fp32": FP32}) == chosen


def test_what_was_asked_for_is_taken_where_nothing_is_measured() -> None:
    assert choose(["int8", "fp16", "fp32"], {}) == "int8"
    assert choose(["fp16", "fp32"], {}) == "fp16"


def test_gain_compares_rates_at_the_knee_of_fp32() -> None:
    early = [Latency(1, 0, 4, 0, 0, 250, 9), Latency(2, 0, 8, 0, 0, 250, 9), Latency(4, 0, 16, 0, 0, 250, 9)]
    assert gain("int8", {"int8": early, "fp32": FP32}) == pytest.approx(250 / 200)


def candidate(precision: str) -> tuple[Candidate, Score]:
    score = Score("cosine", 20, 0.99, 0.98, "")
    return Candidate(precision, Path("t"), Path("s"), score, (), None), score


def test_a_verdict_says_what_became_of_each() -> None:
    measured = {"int8": rows_of(200, 300, 500), "fp16": rows_of(100, 150, 210), "fp32": FP32}
    told = {name: verdict(*candidate(name), "int8", measured) for name in measured}
    assert told["int8"] == "is taken: 2.50 times fp32's rate at batch 4"
    assert told["fp16"] == "is not worth it: 1.05 times fp32's rate at batch 4"
    assert told["fp32"] == "is the reference"
    slower = {**measured, "fp16": rows_of(150, 220, 400)}
    assert (
        verdict(*candidate("fp16"), "int8", slower) == "passed, slower than another: 2.00 times fp32's rate at batch 4"
    )
    assert verdict(*candidate("fp32"), "fp32", measured) == "is taken"
    failed = Score("cosine", 20, 0.9, 0.1, "mean 0.9000, at least 0.99 is promised")
    assert verdict(candidate("int8")[0], failed, "fp32", {}).startswith("failed the gate: mean 0.9000")
    assert verdict(*candidate("int8"), "int8", {}) == "is taken; its speed is not measured here"
    assert verdict(*candidate("fp16"), "int8", {}) == "passed"
