"""What cannot be built is one line that names it, and leaves the folder as it was."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import builder_models
import numpy as np
import onnx
import pytest
import tiny_models
from builder_models import build, snapshot
from onnx import helper

from builders import placing
from builders.errors import BuildError

pytestmark = pytest.mark.usefixtures("cache", "quick")


def test_a_full_disk_is_told_and_leaves_the_old_engine(
    sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(sources, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(placing.shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(BuildError, match=r"GB are needed, 0\.0 GB are free"):
        build(sources | {"max_batch_size": 2}, tmp_path / "out")
    assert snapshot(tmp_path / "out") == before


def test_a_disk_that_fills_up_is_told(sources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(sources, tmp_path / "out")
    before = snapshot(tmp_path / "out")

    def full(model: Any, path: Any, *more: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("builders.precisions.onnx.save", full)
    with pytest.raises(BuildError, match="No space left on device"):
        build(sources, tmp_path / "out", force=True)
    assert snapshot(tmp_path / "out") == before


def refused(fields: dict[str, Any], out: Path) -> str:
    with pytest.raises(BuildError) as caught:
        build(fields, out)
    assert len(str(caught.value).splitlines()) == 1 and not out.exists()
    return str(caught.value)


def test_items_that_do_not_fit_the_model_are_told(sources: dict[str, Any], tmp_path: Path) -> None:
    for arrays, told in (
        (
            {"x": np.zeros((40, 16))},
            "calibration: 20 of 20 items cannot be computed: x: is float64 [16]; allowed: float32",
        ),
        ({"x": np.zeros((40, 15), "f")}, "x: is float32 [15]; allowed: float32 [16]"),
        ({"z": np.arange(640, dtype="f").reshape(40, 16)}, "x: is missing; allowed: float32 [16]"),
    ):
        some = {name: array + np.arange(40)[:, None].astype(array.dtype) for name, array in arrays.items()}
        np.savez(tmp_path / "data.npz", **some)
        assert told in refused(sources, tmp_path / "out")


def test_arrays_have_no_data_of_their_own(sources: dict[str, Any], tmp_path: Path) -> None:
    fields = {name: value for name, value in sources.items() if name not in ("calibration", "evaluation")}
    told = refused(fields, tmp_path / "out")
    assert told == "calibration: is missing; precision int8 needs data for other than texts"


def fixed_batch() -> onnx.ModelProto:
    nodes = [helper.make_node("Tanh", ["x"], ["y"], "t")]
    return builder_models.graph(nodes, {}, inputs=[("x", 1, [2, 4])], outputs=[("y", 1, [2, 4])])


def mixing() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMean", ["x", "first"], ["m"], "mean"),
        helper.make_node("Sub", ["x", "m"], ["y"], "centre"),
    ]
    return builder_models.graph(nodes, {"first": np.array([0])})


def summed() -> onnx.ModelProto:
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], "sum", keepdims=0)]
    return builder_models.graph(nodes, {}, outputs=[("y", 1, [])])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (fixed_batch, "x is [2, 4]; allowed: a first dimension that varies, the batch"),
        (mixing, "output y of a batch differs from its items alone: it cannot be batched"),
        (summed, "y has no dimensions; allowed: a first dimension that varies"),
    ],
)
def test_an_onnx_model_that_cannot_be_batched_is_refused(tmp_path: Path, make: Any, told: str) -> None:
    path = builder_models.saved(make(), tmp_path / "m.onnx")
    assert refused({"source": f"onnx:{path}"}, tmp_path / "out") == f"{path}: {told}".replace(
        "varies", "varies, the batch" if told.endswith("varies") else "varies"
    )


@pytest.mark.parametrize("content", [b"", b"no model", "half", "folder"])
def test_a_file_that_is_no_onnx_model_is_named(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "m.onnx"
    if content == "folder":
        path.mkdir()
    else:
        half = builder_models.linear().SerializeToString()[:-60]
        path.write_bytes(half if content == "half" else content)
    told = refused({"source": f"onnx:{path}"}, tmp_path / "out")
    assert told.startswith(str(path)) and ("no valid ONNX" in told or "no such file" in told)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("onnx:no/such.onnx", "no/such.onnx: no such file"),
        ("hf:no/such/folder", "no/such/folder: no such directory"),
        ("torch:builder_models", "'torch:builder_models' is not understood; torch:MODULE:FACTORY"),
        ("torch:no_such_module:f", "there is no module no_such_module"),
        ("torch:builder_models:absent", "builder_models has no absent"),
        ("torch:builder_models:raising_factory", "torch:builder_models:raising_factory: KeyError: 'weights'"),
        ("torch:builder_models:raising_forward", "of its example inputs: RuntimeError: no forward today"),
        ("torch:builder_models:no_module", "returned a str; allowed: a module and its example inputs"),
        ("torch:builder_models:no_pair", "torch:builder_models:no_pair: TypeError"),
        ("torch:builder_models:number_for_example", "example inputs 3; allowed: tensors, the batch first"),
        ("torch:builder_models:wrong_name", "example inputs ['nobody']; allowed: tensors"),
        ("torch:builder_models:untraceable", "cannot be exported to ONNX: "),
        ("torch:builder_models:centred", "output output of a batch differs from its items alone"),
        ("wheel:pyyaml", "wheel:pyyaml: must hold one model (config.json), found: none"),
        ("wheel:not a name", "'not a name' is not a wheel's name"),
    ],
)
def test_a_source_that_cannot_be_built_is_told(tmp_path: Path, source: str, told: str) -> None:
    assert told in refused({"source": source}, tmp_path / "out")


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_a_model_that_generates_is_no_encoder(tmp_path: Path, family: str) -> None:
    tiny_models.save_hf(tiny_models.random_model(family), tmp_path / "hf")
    told = refused({"source": f"hf:{tmp_path / 'hf'}"}, tmp_path / "out")
    assert told == f"{tmp_path / 'hf'}: is a {family}, which generates; allowed: an encoder, or kind: llm"
