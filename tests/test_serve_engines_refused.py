"""A server whose engine cannot be used does not start: exit status 1, and one line that says how to build it anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_models import REBUILD, array_engine, batch, graph, repository, stamped, text_engine
from onnx import TensorProto, helper
from repositories import configure
from serving import ROOT

from config_gen.batching import Batching
from engines.stamp import FILE, Feed, Stamp
from gapless.engine_plan import engine_plan


def refused(where: Path, folder: Path) -> str:
    """The launcher's last line; it has ended by itself with status 1."""
    command = [sys.executable, "-m", "gapless", "serve", "--model-repository", str(where)]
    command += [word for kind in ("http", "grpc", "metrics") for word in (f"--{kind}-port", "0")]
    command += ["--log-file", str(folder / "triton.log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert not any("ready after" in line or "Traceback" in line for line in lines)
    return " ".join(lines[-1:])


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A repository with one good engine, whose folder is broken by the test."""
    return repository(tmp_path / "repository", words=text_engine(tmp_path / "words"))


def restamp(version: Path, **change: Any) -> None:
    record = json.loads((version / FILE).read_text())
    (version / FILE).write_text(json.dumps(record | change))


def test_a_folder_without_a_stamp(words: Path, tmp_path: Path) -> None:
    (words / "words" / "1" / FILE).unlink()
    line = refused(words, tmp_path)
    assert "words: " in line and line.endswith("words/1 holds no engine; run gapless build")


@pytest.mark.parametrize("runtime", ["tensorrt", "tensorrt_rtx"])
def test_a_plan_that_this_machine_cannot_run(words: Path, tmp_path: Path, runtime: str) -> None:
    """Built by a version that does not exist, for a GPU that nobody has."""
    restamp(words / "words" / "1", runtime=runtime, tools={runtime: "0.1.0"}, compute_capabilities=["99.9"])
    line = refused(words, tmp_path)
    assert f"{runtime} 0.1.0" in line and "installed here" in line and line.endswith(f"rebuild: {REBUILD}")


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_file_that_is_not_the_one_that_was_built(words: Path, tmp_path: Path, name: str) -> None:
    (words / "words" / "1" / name).write_bytes(b"something else")
    line = refused(words, tmp_path)
    assert f"{name} is not the file that was built" in line and line.endswith(f"rebuild: {REBUILD}")


def test_a_stamp_of_another_format(words: Path, tmp_path: Path) -> None:
    restamp(words / "words" / "1", format=2)
    line = refused(words, tmp_path)
    assert f"{FILE}: format: " in line and line.endswith("run gapless build again")


def test_a_batch_larger_than_the_engine_was_built_for(words: Path, tmp_path: Path) -> None:
    batch(words, "words", 5)
    line = refused(words, tmp_path)
    assert "max_batch_size: 5 is not allowed; this engine was built for 4" in line


def test_a_configuration_that_was_generated_for_another_engine(words: Path, tmp_path: Path) -> None:
    other = engine_plan("words", Stamp.read(array_engine(tmp_path / "sums")), Batching(4))
    configure(words, other)
    line = refused(words, tmp_path)
    assert "input: a is not allowed; this engine has text: run gapless generate again" in line


def test_an_engine_that_cannot_compute_is_not_ready_for_a_moment(tmp_path: Path) -> None:
    """What the warm-up computes, an index of 1, is beyond its table: it fails before a request could."""
    look = helper.make_node("Gather", ["table", "at"], ["row"])
    looked = graph(
        [look],
        {"at": (TensorProto.INT64, ["batch", 1])},
        {"row": (TensorProto.FLOAT, ["batch", 1, 2])},
        {"table": np.zeros((1, 2), np.float32)},
    )
    where = repository(
        tmp_path / "repository",
        looked=stamped(tmp_path / "looked", looked, Feed("arrays")),
        sums=array_engine(tmp_path / "sums"),
    )
    line = refused(where, tmp_path)
    assert "looked: the model cannot compute this: " in line and "idx=1 " in line
