"""A build killed at any moment leaves the old engine whole, and the next build goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import builder_models
import pytest
from builder_models import small_int8, whole

from engines.runner import Runner
from engines.stamp import FILE, Stamp

ROOT = Path(__file__).resolve().parent.parent
KILLED = """
import os, signal, sys
from pathlib import Path
import builder_models
import builders.latency, builders.placing, builders.precisions, builders.search, builders.stages

calls, moment = [], sys.argv[3]
what, _, at = moment.partition(":")


def dying(function):
    def call(*arguments, **more):
        calls.append(1)
        if len(calls) == int(at) and not what.endswith("after"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **more)
        if len(calls) == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call


class Os:
    "The module os of one module alone."
    def __getattr__(self, name):
        return getattr(os, name)

    replace = staticmethod(dying(os.replace))


if what == "quantizing":
    builders.search.quantized = dying(builders.search.quantized)
elif what == "writing":
    builders.precisions.onnx.save = dying(builders.precisions.onnx.save)
elif what.startswith("placing"):
    builders.placing.os = Os()
elif what == "removing":
    builders.engine = sys.modules.get("builders.engine")
    import builders.engine
    true_swap = builders.engine.swap
    def swap(scratch, out, stamp, names, old):
        Path.unlink = dying(Path.unlink)
        true_swap(scratch, out, stamp, names, old)
    builders.engine.swap = swap
builders.latency.measure.__defaults__ = (lambda what, done, total: None, 0.0, 9)
fields = builder_models.small_int8(Path(sys.argv[1]), "new", seed=5)
builder_models.build(fields, Path(sys.argv[2]), force=moment.startswith("quantizing"), profile=True)
print("done")
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where the source is, and where an engine of it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("builders.latency.measure.__defaults__", (lambda what, done, total: None, 0.0, 9))
    builder_models.build(small_int8(tmp_path), tmp_path / "out", profile=True)
    return tmp_path, tmp_path / "out"


def started(*arguments: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-c", KILLED, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120)


# A swap moves the graph, the profile and then the stamp.
MOMENTS = ["quantizing:2", "writing:2", "placing:1", "placing:2", "placing:3"]
AFTER = ["placing-after:3", "removing:2"]


@pytest.mark.parametrize("moment", [*MOMENTS, *AFTER])
def test_a_build_that_is_killed_leaves_a_whole_engine(folders: tuple[Path, Path], moment: str) -> None:
    source, out = folders
    before = Stamp.read(out)
    killed = started(source, out, moment)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr[-1000:]
    stamp = Stamp.read(out)
    stamp.check(out)
    assert (stamp == before) == (moment in MOMENTS)
    Runner(out)
    again = builder_models.build(small_int8(source, "new", seed=5), out, profile=True)
    assert again.up_to_date == (moment in AFTER)
    found = Stamp.read(out)
    found.check(out)
    assert found.source_hash != before.source_hash and found.source.endswith("new.onnx")
    if not again.up_to_date:
        whole(out)
        assert not [path for path in out.iterdir() if path.name.startswith(".build-")]


def test_a_first_build_that_is_killed_leaves_no_engine_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out"
    assert started(tmp_path, out, "placing:2").returncode == -signal.SIGKILL
    assert not (out / FILE).exists()
    done = started(tmp_path, out, "nothing:0")
    assert done.stdout == "done\n", done.stderr[-1000:]
    whole(out)
    Runner(out)


def test_a_build_that_waits_for_one_that_is_killed_goes_on(folders: tuple[Path, Path]) -> None:
    """The lock of a dead process is nobody's."""
    source, out = folders
    assert started(source, out, "writing:1").returncode == -signal.SIGKILL
    assert (out / ".build.lock").exists()
    assert started(source, out, "nothing:0").stdout == "done\n"
    assert whole(out).source.endswith("new.onnx")
