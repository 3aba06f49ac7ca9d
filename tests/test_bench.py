"""Replaying a workload: every request gives its tokens, times add up, and a file that is none is told in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from config_gen.percentiles import percentile
from decode.bench import arrivals, measure, scheduling, summary
from decode.config import EngineConfig
from decode.executors.cost_model import Measured
from decode.executors.gpu_cost import StepWork
from decode.executors.scripted import ScriptedExecutor
from decode.workload import Workload, WorkloadError
from gapless.commands.bench import _numbers
from gapless.errors import UsageError


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"requests": rows}))
    return path


def one(times: int = 1, **changes: Any) -> str:
    """A workload of one request, changed."""
    return json.dumps({"requests": [{"id": "a", "prompt_ids": [1, 2], "max_tokens": 2} | changes] * times})


def rows(count: int = 4, shared: int = 2) -> list[dict[str, Any]]:
    return [
        {"id": i, "prompt_ids": [*range(32), 100 + i], "max_tokens": 3 + i, "shared_prefix": i < shared}
        for i in range(count)
    ]


def test_a_replay_counts_every_token_and_every_gap(tmp_path: Path) -> None:
    work = Workload.read(written(tmp_path / "w.json", rows()))
    config = EngineConfig(num_pages=64, max_num_seqs=2, max_num_batched_tokens=64)
    run = measure(work, config, ScriptedExecutor(lambda chunk: 7))
    assert run.output_tokens == 3 + 4 + 5 + 6 and len(run.itl) == run.output_tokens - 4
    assert set(run.ttft) == set(run.e2e) == {"0", "1", "2", "3"}
    assert all(0 < run.ttft[name] <= run.e2e[name] <= run.seconds for name in run.ttft)
    assert run.cached_tokens == 3 * 32  # all but the first find both full pages
    told = summary(run, work, percentile)
    assert told["ttft_shared_ms"]["p50"] == round(min(run.ttft["0"], run.ttft["1"]) * 1e3, 2)
    assert set(told["step_ms"]) == {"scheduling"}  # this executor splits nothing


def test_scheduling_is_measured_on_full_decode_steps_only() -> None:
    taken = scheduling(running=20, waiting=30, steps=7)
    assert len(taken) == 7 and all(seconds > 0 for seconds in taken)


def test_without_the_prefix_cache_nothing_is_cached(tmp_path: Path) -> None:
    work = Workload.read(written(tmp_path / "w.json", rows()), limit=2)
    assert len(work.requests) == 2
    run = measure(work, EngineConfig(num_pages=64, prefix_cache=False), ScriptedExecutor(lambda chunk: 7))
    assert run.cached_tokens == 0 and run.output_tokens == 7


def test_a_request_that_cannot_be_served_ends_the_measurement(tmp_path: Path) -> None:
    work = Workload.read(written(tmp_path / "w.json", rows()))
    with pytest.raises(RuntimeError, match=r"request 0 failed: .*whole cache"):
        measure(work, EngineConfig(num_pages=2), ScriptedExecutor(lambda chunk: 7))


def test_arrivals_are_a_poisson_process_that_repeats(tmp_path: Path) -> None:
    requests = Workload.read(written(tmp_path / "w.json", rows(2000))).requests
    moments = arrivals(requests, 4.0)
    assert moments == arrivals(requests, 4.0) == sorted(moments)
    assert moments[-1] / 1e9 == pytest.approx(2000 / 4, rel=0.1)
    assert set(arrivals(requests, None)) == {0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not a workload file: JSONDecodeError"),
        ("[]", "not a workload file: TypeError"),
        ('{"requests": []}', "requests: empty; at least one is needed"),
        ('{"requests": [{"id": 1, "prompt_ids": [1]}]}', "requests[0]: KeyError: 'max_tokens'"),
        ('{"requests": [{"id": 1, "prompt_ids": [1], "max_tokens": 0}]}', "requests[0]: InvalidRequest: max_tokens: 0"),
        ("[" * 100000, "not a workload file: RecursionError"),
        (one(prompt_ids=[float("inf")]), "requests[0]: ValueError: prompt_ids[0]: inf is not a token id; 0 to 99"),
        (one(prompt_ids=[1, 100]), "requests[0]: ValueError: prompt_ids[1]: 100 is not a token id; 0 to 99"),
        (one(prompt_ids="12"), "requests[0]: ValueError: prompt_ids: a list of token ids is needed"),
        (one(times=2), "requests[1]: id 'a' is that of requests[0]; each its own"),
    ],
)
def test_a_file_that_is_no_workload_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        Workload.read(path, vocab_size=100)
    assert str(caught.value).startswith(f"{path}: {told}") and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["²", "0", "", "1,", "9" * 5000, "-1", "1.5"])
def test_a_concurrency_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--concurrency"):
        _numbers("concurrency", text)
    assert _numbers("concurrency", "1,08,32") == [1, 8, 32]


def engine_with_law(folder: Path, model: Path, requests: int, tokens: int) -> subprocess.CompletedProcess[str]:
    rows = [{"id": n, "prompt_ids": [7 + n] * (20 + 9 * n), "max_tokens": tokens} for n in range(requests)]
    (folder / "w.json").write_text(json.dumps({"requests": rows}))
    words = ["w.json", "--model-dir", model, "--concurrency", "2", "--prefix-cache", "on", "--repeat", "1"]
    command = [sys.executable, "-m", "gapless", "bench", "engine", *words, "--law", "law.json", "--json", "out.json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_a_law_of_the_real_model_is_written_with_its_errors(smollm2_dir: Path, tmp_path: Path) -> None:
    done = engine_with_law(tmp_path, smollm2_dir, 6, 30)
    assert done.returncode == 0, done.stderr
    found, told = Measured.read(tmp_path / "law.json"), json.loads((tmp_path / "out.json").read_text())["law"]
    assert told["run"] == found.run._asdict() and found.run.requests == 6
    assert found.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4  # K and V, layers, KV heads, head dimension, fp32
    assert len(found.law.spread) == 100 and found.law.step(StepWork(decodes=2, context_tokens=60, draws=2)) > 1e6


def test_too_few_steps_for_a_law_lose_no_measurement(smollm2_dir: Path, tmp_path: Path) -> None:
    done = engine_with_law(tmp_path, smollm2_dir, 2, 3)
    assert done.returncode == 2 and "a law needs at least 40 steps" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "law.json").exists()
    assert json.loads((tmp_path / "out.json").read_text())["results"][0]["output_tokens_per_s"]["median"] > 0
