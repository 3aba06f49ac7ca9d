"""Which precision is put in place: by the gate, by latency where it is measured, as asked where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from builder_models import build, snapshot, whole
from onnx import TensorProto

from builders import engine as under_test
from builders.compile import FLAVOURS
from builders.errors import BuildError
from builders.latency import Latency
from engines.stamp import Stamp

pytestmark = pytest.mark.usefixtures("cache", "quick")


def rated(**rates: float) -> Any:
    def measure(sessions: Any, shapes: Any, inputs: Any, tell: Any) -> Any:
        return {
            name: [Latency(b, n, b / rates[name], 0, 0, rates[name] * 1e3, 9) for b, n in shapes] for name in sessions
        }

    return measure


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({"int8": 2.0, "fp16": 1.5, "fp32": 1.0}, "int8"),
        ({"int8": 1.2, "fp16": 0.4, "fp32": 1.0}, "fp32"),
        ({"int8": 1.4, "fp16": 1.5, "fp32": 1.0}, "fp16"),
    ],
)
def test_the_precision_that_is_worth_it_is_put_in_place(
    sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], chosen: str
) -> None:
    monkeypatch.setattr(under_test, "measure", rated(**rates))
    built = build(sources, tmp_path / "out")
    stamp = whole(tmp_path / "out")
    assert (built.asked, built.precision, stamp.precision) == ("int8", chosen, chosen)
    types = {i.data_type for i in onnx.load(tmp_path / "out" / stamp.file).graph.initializer if len(i.dims) == 2}
    kinds = {"int8": TensorProto.INT8, "fp16": TensorProto.FLOAT16, "fp32": TensorProto.FLOAT}
    assert types == {kinds[chosen]}
    assert [row.verdict.startswith("is taken") for row in built.rows] == [row.precision == chosen for row in built.rows]


def test_where_int8_fails_the_gate_what_is_below_it_is_taken(
    sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "measure", rated(int8=9.0, fp16=2.0, fp32=1.0))
    built = build(sources | {"accuracy": {"metric": "max_abs_error", "max": 0.004}}, tmp_path / "out")
    assert built.precision == "fp16" and [row.score.passed for row in built.rows] == [False, True, True]
    failed = built.rows[0]
    assert failed.verdict.startswith("failed the gate: largest ") and failed.size == 0
    assert "layer0" in failed.notes[0] and "layer1" in failed.notes[0]


def test_where_it_must_not_fall_back_a_failed_gate_leaves_the_old_engine(
    sources: dict[str, Any], tmp_path: Path
) -> None:
    build(sources, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    strict = sources | {"accuracy": {"metric": "max_abs_error", "max": 1e-9}, "on_gate_failure": "fail"}
    with pytest.raises(BuildError) as caught:
        build(strict, tmp_path / "out")
    told = str(caught.value)
    assert told.startswith("m: int8 does not pass the gate: largest ") and "layer0" in told
    assert len(told.splitlines()) == 1 and caught.value.exit_status == 2
    assert snapshot(tmp_path / "out") == before


def test_an_engine_for_a_gpu_that_is_not_here_is_built_as_asked(sources: dict[str, Any], tmp_path: Path) -> None:
    fields = sources | {"engine": {"runtime": "tensorrt_rtx", "compute_capability": ["8.0", "8.9"]}}
    built = build(fields, tmp_path / "out")
    stamp = Stamp.read(tmp_path / "out")
    assert (built.precision, built.knee, stamp.runtime) == ("int8", None, "tensorrt_rtx")
    assert [row.latencies for row in built.rows] == [(), (), ()]
    assert built.rows[0].verdict == "is taken; its speed is not measured here"
    assert stamp.compute_capabilities == ("8.0", "8.9") and stamp.batch_buckets == (1, 2, 4)
    assert (tmp_path / "out" / stamp.file).read_bytes()[:4] == b"vtrt" and FLAVOURS["tensorrt_rtx"].ahead
    assert build(fields, tmp_path / "out").up_to_date
    before = snapshot(tmp_path / "out")
    with pytest.raises(BuildError, match="--profile: tensorrt_rtx needs a GPU"):
        build(fields, tmp_path / "out", profile=True)
    assert snapshot(tmp_path / "out") == before
