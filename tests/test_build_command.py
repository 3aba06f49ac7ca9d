"""`gapless build` as it is typed: what it writes and prints, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import builder_models
import onnxruntime
import pytest
import yaml
from builder_models import small_int8

from builders.latency import batches
from config_gen.profile import Profile
from engines.runner import Runner
from engines.stamp import Stamp

PROGRAM = Path(sys.executable).with_name("gapless")


def gapless(folder: Path, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200"} | environ
    command = [str(PROGRAM), "build", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def write_sla(folder: Path, **models: Any) -> Path:
    path = folder / "sla.yaml"
    declared = {name: {"kind": "onnx"} | fields for name, fields in models.items()}
    path.write_text(yaml.safe_dump({"gapless": 1, "tiers": {"a": {}}, "models": declared}))
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Two models built with everything that can be asked for, and the folder that this happened in."""
    folder = tmp_path_factory.mktemp("built")
    sla = write_sla(folder, one=small_int8(folder), two={"source": "torch:mine:factory", "max_batch_size": 2})
    (folder / "mine.py").write_text("from builder_models import mlp as factory\n")
    tests = str(Path(builder_models.__file__).parent)
    return folder, gapless(folder, "--sla", sla, "--profile", "--json", "summary.json", PYTHONPATH=tests)


def test_all_models_of_the_file_are_built_into_the_repository(built: Any) -> None:
    folder, done = built
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        version = folder / "model_repository" / name / "1"
        Stamp.read(version).check(version)
        assert (version / "model.py").is_file() and [path.name for path in version.parent.iterdir()] == ["1"]
    items = builder_models.weights(3, 16)
    wanted = onnxruntime.InferenceSession(str(folder / "m.onnx")).run(None, {"x": items})
    got = Runner(folder / "model_repository" / "one" / "1").run([{"x": item} for item in items])
    assert all(isinstance(row, dict) and abs(row["y"] - wanted[0][at]).max() < 0.1 for at, row in enumerate(got))


def test_the_summary_holds_every_row_and_latency(built: Any) -> None:
    folder, _ = built
    models = json.loads((folder / "summary.json").read_text())["models"]
    assert list(models) == ["one", "two"]
    one = models["one"]
    assert (one["asked"], one["runtime"], one["up_to_date"]) == ("int8", "onnxruntime", False)
    assert [row["precision"] for row in one["rows"]] == ["int8", "fp16", "fp32"]
    assert one["knee"] in (1, 2, 4) and Path(one["out"]) == Path("model_repository/one/1")
    for row in one["rows"]:
        assert [found["batch"] for found in row["latencies"]] == [1, 2, 4] and row["size"] > 0
        assert all(0 < found["p50"] <= found["p99"] for found in row["latencies"])
    assert one["rows"][0]["score"]["mean"] >= 0.99 and one["rows"][0]["score"]["items"] == 32
    assert [row["precision"] for row in models["two"]["rows"]] == ["fp32"]


def test_the_table_shows_precision_size_accuracy_and_latency(built: Any) -> None:
    folder, done = built
    models = json.loads((folder / "summary.json").read_text())["models"]
    lines = done.stdout.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("precision"))
    assert lines[head].split("  ")[0] == "precision" and "cosine mean" in lines[head] and "ms at 1" in lines[head]
    for at, row in enumerate(models["one"]["rows"], head + 1):
        cells = lines[at].split()
        mean = "–" if row["score"]["mean"] is None else f"{row['score']['mean']:.4f}"
        assert cells[:3] == [row["precision"], f"{row['size'] / 1e6:.1f}", mean]
        assert cells[4] == f"{row['latencies'][0]['p50']:.1f}"
    assert f"one runs in {models['one']['precision']}" in done.stdout
    assert any(line.startswith("int8 ") and "times fp32" in line for line in lines)


def test_the_profile_can_be_read_by_whoever_plans(built: Any) -> None:
    folder, _ = built
    for name, largest in (("one", 4), ("two", 2)):
        version = folder / "model_repository" / name / "1"
        profile = Profile.read(version / Stamp.read(version).profile)
        assert {row.batch for row in profile.rows} == set(batches(largest))
        assert {row.threads for row in profile.rows} == set(batches(len(os.sched_getaffinity(0))))
        assert all(0 < row.p50 <= row.p99 and row.runs >= 5 for row in profile.rows)


def test_building_again_does_nothing_and_says_so(built: Any) -> None:
    folder, _ = built
    before = builder_models.snapshot(folder / "model_repository" / "one" / "1")
    again = gapless(folder, "one", "--sla", "sla.yaml", "--json", "again.json")
    assert again.returncode == 0 and "up to date" in again.stdout
    assert json.loads((folder / "again.json").read_text())["models"]["one"]["up_to_date"] is True
    after = builder_models.snapshot(folder / "model_repository" / "one" / "1")
    assert {n: v for n, v in after.items() if n != "model.py"} == {n: v for n, v in before.items() if n != "model.py"}


def test_one_model_goes_where_it_is_told(built: Any) -> None:
    folder, _ = built
    done = gapless(folder, "one", "--sla", "sla.yaml", "--out", "elsewhere")
    assert done.returncode == 0 and Stamp.read(folder / "elsewhere").model == "one"
    assert Stamp.read(folder / "elsewhere").rebuild == "gapless build one --sla sla.yaml --out elsewhere"
    here = Stamp.read(folder / "model_repository" / "one" / "1").rebuild
    assert here == f"gapless build one --sla {folder / 'sla.yaml'}"
    assert not (folder / "elsewhere" / "model.py").exists() and not (folder / "config.pbtxt").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("three", "--sla", "sla.yaml"), "three: is not in sla.yaml; it declares one, two"),
        (("--sla", "sla.yaml", "--out", "x"), "--out: takes one model; name one of one, two"),
        (("--sla", "none.yaml"), "none.yaml: No such file or directory"),
        ((), "--sla or --source: one is needed"),
        (("one", "--source", "wheel:x", "--profile"), "--source: goes with the name of one LLM, without --profile"),
        (("one", "--sla", "sla.yaml", "--json", "no/such/folder/f.json"), "--json"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_status_2(built: Any, words: tuple[str, ...], told: str) -> None:
    done = gapless(built[0], *words)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("gapless: ") and told in done.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"accuracy": {"metric": "max_abs_error", "max": 1e-9}, "on_gate_failure": "fail"},
            "m: int8 does not pass the gate: largest ",
        ),
        ({"source": "onnx:none.onnx"}, "none.onnx: no such file"),
        ({"calibration": "none.npz"}, "calibration: none.npz: No such file"),
        ({"engine": {"runtime": "tensorrt"}}, "engine.runtime: tensorrt is not installed"),
        ({"engine": {"runtime": "tensorrt_rtx", "compute_capability": ["9.0"]}}, "9.0 is not allowed"),
        ({"accuracy": {"metric": "nowhere:metric", "min": 1}}, "accuracy.metric: nowhere cannot be imported"),
    ],
)
def test_what_cannot_be_built_is_one_line_and_status_2(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    write_sla(tmp_path, m=small_int8(tmp_path) | change)
    done = gapless(tmp_path, "--sla", "sla.yaml")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1 and told in done.stderr, done.stderr
    assert not (tmp_path / "model_repository" / "m" / "1" / "engine.json").exists()
