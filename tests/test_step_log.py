"""The log of steps: what was computed and ns until the next step, in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_engine import Bench, request

from decode import step_log
from decode.config import ConfigError, EngineConfig
from decode.executors.cost_model import Step
from decode.executors.gpu_cost import StepWork


def test_a_step_lasts_until_the_next_one_and_the_last_before_a_pause_is_left_out() -> None:
    bench = Bench(EngineConfig(num_pages=40, page_size=4, max_num_batched_tokens=40))
    taken: list[Step] = []
    log = step_log.StepLog(bench.engine, taken.append)
    bench.submit(request("a", 10, 3))
    for _ in range(3):
        began = bench.now
        assert bench.step()
        log.step(began, (), bench.plans[-1], None)
        bench.now += 500  # ns that the driver needs between two steps
    log.step(bench.now, (), None, None)
    assert taken == [
        (StepWork(10, 1, 50, 0, 0, 1), 1_000_500),
        (StepWork(0, 0, 0, 1, 11, 1), 1_000_500),
    ]


def test_a_file_holds_a_line_a_step_at_once_and_a_torn_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    take = step_log.to_file(path)
    steps: list[Step] = [(StepWork(7, 1, 21, 2, 90, 3), 12_345), (StepWork(0, 0, 0, 1, 8, 1), 999)]
    for step in steps:
        take(step)
    assert step_log.read(path) == steps
    path.write_text(path.read_text() + "7 1 21")
    assert step_log.read(path) == steps


def test_a_full_disk_ends_the_log_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    take = step_log.to_file(Path("/dev/full"))
    for _ in range(3):
        take((StepWork(1), 5))
    assert capsys.readouterr().err.splitlines() == [
        "step_log: /dev/full: No space left on device; no more steps are logged"
    ]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"step_log: '.*/none/steps' is not allowed \(No such file or directory\)"):
        step_log.to_file(tmp_path / "none" / "steps")
