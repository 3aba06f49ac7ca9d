"""Building an engine: what is done again and what is not, what replaces what, and what a refusal says."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builder_models
import numpy as np
import onnx
import onnxruntime
import pytest
from builder_models import build, snapshot, whole

from builders import int8, stages
from builders.latency import batches
from builders.report import Built
from config_gen.profile import Profile
from engines.runner import Runner
from engines.stamp import FILE, Stamp

pytestmark = pytest.mark.usefixtures("cache", "quick")


def test_an_engine_computes_what_its_source_does(sources: dict[str, Any], tmp_path: Path) -> None:
    built = build(sources, tmp_path / "out")
    stamp = whole(tmp_path / "out")
    assert (built.precision, stamp.precision, stamp.runtime) == (stamp.precision, built.precision, "onnxruntime")
    assert [row.precision for row in built.rows] == ["int8", "fp16", "fp32"]
    assert all(row.score.passed and [r.batch for r in row.latencies] == [1, 2, 4] for row in built.rows)
    items = builder_models.weights(3, 16, seed=7)
    wanted = onnxruntime.InferenceSession(sources["source"].removeprefix("onnx:")).run(None, {"x": items})[0]
    got = Runner(tmp_path / "out").run([{"x": item} for item in items])
    rows = np.concatenate([row["y"] for row in got if isinstance(row, dict)])
    assert rows.shape == wanted.shape and np.abs(rows - wanted).max() < 0.1


def test_nothing_is_done_when_nothing_changed(sources: dict[str, Any], tmp_path: Path) -> None:
    first = build(sources, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    again = build(sources | {"targets": {"a": {"e2e": "1s"}}}, tmp_path / "out")
    assert not first.up_to_date and again.up_to_date
    assert snapshot(tmp_path / "out") == before
    assert (again.rows, again.knee, again.precision) == (first.rows, first.knee, first.precision)


def changed_source(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    model = onnx.load(folder / "m.onnx")
    model.graph.initializer[0].raw_data = bytes(reversed(range(256))) * 8
    values = builder_models.weights(16, 32, seed=77) / 4
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, model.graph.initializer[0].name))
    onnx.save(model, folder / "m.onnx")
    return fields


def changed_data(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    builder_models.write_npz(folder / "data.npz", width=16, seed=4)
    return fields


CHANGES: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "source": changed_source,
    "data": changed_data,
    "precision": lambda fields, folder: fields | {"precision": "fp16"},
    "gate": lambda fields, folder: fields | {"accuracy": {"metric": "cosine", "min": 0.98}},
    "batch": lambda fields, folder: fields | {"max_batch_size": 2},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_built_again(sources: dict[str, Any], tmp_path: Path, change: str) -> None:
    build(sources, tmp_path / "out")
    before = Stamp.read(tmp_path / "out")
    again = build(CHANGES[change](sources, tmp_path), tmp_path / "out")
    assert not again.up_to_date and whole(tmp_path / "out").build_key != before.build_key
    assert build(CHANGES[change](sources, tmp_path), tmp_path / "out").up_to_date


@pytest.mark.parametrize("damage", ["changed", "gone", "stamp"])
def test_an_engine_that_was_damaged_is_built_again(sources: dict[str, Any], tmp_path: Path, damage: str) -> None:
    build(sources, tmp_path / "out")
    stamp = Stamp.read(tmp_path / "out")
    path = tmp_path / "out" / (FILE if damage == "stamp" else stamp.file)
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-7])
    again = build(sources, tmp_path / "out")
    assert not again.up_to_date
    assert whole(tmp_path / "out").files == stamp.files


@pytest.mark.parametrize("damage", ["changed", "gone", "record"])
def test_a_stage_that_was_damaged_is_made_again(
    sources: dict[str, Any], tmp_path: Path, cache: Path, damage: str
) -> None:
    """A cut-off graph in the cache went into the next engine, with a stamp that called it whole."""
    build(sources, tmp_path / "out")
    wanted = whole(tmp_path / "out").files
    for path in [*cache.glob("*/*.onnx")] if damage != "record" else [*cache.glob("*/done.json")]:
        path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:100])
    shutil.rmtree(tmp_path / "out")
    build(sources, tmp_path / "out")
    assert set(whole(tmp_path / "out").files) == set(wanted) or damage == "record"
    Runner(tmp_path / "out")


def test_another_folder_gets_what_the_cache_holds(
    sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(sources, tmp_path / "out")
    monkeypatch.setattr(int8, "calibrate", None)  # would raise when called
    build(sources, tmp_path / "other")
    assert whole(tmp_path / "other").files == whole(tmp_path / "out").files
    with pytest.raises(TypeError):
        build(sources, tmp_path / "other", force=True)
    assert whole(tmp_path / "other").files == whole(tmp_path / "out").files


def test_stages_used_longest_ago_are_forgotten(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 100 kB fit; what was used within the last day stays in any case."""
    monkeypatch.setattr(stages, "KEPT", 350_000)
    monkeypatch.setattr(stages, "RECENT", -1)
    made: list[int] = []

    def make(number: int) -> int:
        def fill(scratch: Path) -> dict[str, Any]:
            made.append(number)
            (scratch / "file").write_text(str(number) * 100_000)
            return {"number": number}

        folder, result = stages.stage("s", {"number": number}, fill)
        assert (folder / "file").read_text()[:1] == str(number) == str(result["number"])
        return number

    for number in (1, 2, 3, 1, 4, 1):
        make(number)
    assert made == [1, 2, 3, 4] and len(list(cache.iterdir())) == 3
    make(2)
    assert made == [1, 2, 3, 4, 2]
    monkeypatch.setattr(stages, "RECENT", 3600)
    make(5)
    assert len(list(cache.iterdir())) == 4


def test_corrected_builders_build_anew(
    sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a defective version left in the cache was taken for what the mended one makes."""
    build(sources, tmp_path / "out")
    known = stages.key_of({"a": 1})
    assert stages.key_of({"a": 1}) == known != stages.key_of({"a": 2})
    monkeypatch.setattr(stages, "_own_code", lambda: ["other"])
    assert stages.key_of({"a": 1}) != known
    assert not build(sources, tmp_path / "out").up_to_date


def test_a_new_engine_replaces_all_files_of_old_ones(sources: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(sources, out, profile=True)
    (out / "model-00000000.onnx").write_bytes(b"of a build that was killed")
    (out / "model.py").write_text("of others")
    build(CHANGES["batch"](sources, tmp_path), out)
    (out / "model.py").unlink()
    whole(out)


def test_two_builds_of_one_folder_follow_each_other(sources: dict[str, Any], tmp_path: Path) -> None:
    found: list[Built] = []
    threads = [threading.Thread(target=lambda: found.append(build(sources, tmp_path / "out"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(built.up_to_date for built in found) == [False, True]
    whole(tmp_path / "out")


def test_a_profile_says_what_a_plan_must_know(sources: dict[str, Any], tmp_path: Path) -> None:
    build(sources, tmp_path / "out")
    assert not build(sources, tmp_path / "out", profile=True).up_to_date
    stamp = whole(tmp_path / "out")
    profile = Profile.read(tmp_path / "out" / stamp.profile)
    cores = len(os.sched_getaffinity(0))
    shapes = [(row.threads, row.length, row.batch) for row in profile.rows]
    assert shapes == [(threads, 0, batch) for threads in batches(cores) for batch in (1, 2, 4)]
    assert list(profile.knee) == ["0"] and profile.knee["0"] in (1, 2, 4)
    assert (profile.runtime, profile.machine, profile.precision) == ("onnxruntime", "two cores", stamp.precision)
    assert (profile.cores, profile.typical_length, profile.run_cost) == (cores, 0, None)
    assert 50e6 < profile.memory < profile.host_memory and 0 < profile.prepare_ms < 50
    assert profile.ns(1, 0, cores) <= profile.ns(4) < 1e9
    assert build(sources, tmp_path / "out", profile=True).up_to_date
    assert build(sources, tmp_path / "out").up_to_date


@pytest.mark.parametrize(
    "change", [{"instances": 2}, {"queue_delay": "2ms"}, {"response_cache": {"repeats": "30%"}}, {"traffic": {}}]
)
def test_how_an_engine_is_served_changes_nothing_in_it(
    sources: dict[str, Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    build(sources, tmp_path / "out")
    assert build(sources | change, tmp_path / "out").up_to_date
