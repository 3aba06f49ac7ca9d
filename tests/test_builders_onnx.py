"""Models that come as ONNX files: what is declared of them, what lies beside them, and how old they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builder_models
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny_models
from builder_models import onnx_model, small_int8
from onnx import TensorProto, helper

from builders.errors import BuildError
from builders.export import normalized
from builders.sources import Exported, exported, source_hash


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(builder_models.wheels_shared(tmp_path / "cache")))


def made(**fields: Any) -> Exported:
    return exported(onnx_model(**fields), lambda what, done, total: None)


def run(graph: Path, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def test_a_model_of_pictures_of_any_size_gets_the_size_that_is_declared(tmp_path: Path) -> None:
    """It was measured, warmed up and checked with pictures of 8 by 8 pixels."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[9, 9]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["y"], "flat"),
    ]
    inputs = [("x", TensorProto.FLOAT, ["n", 3, "h", "w"])]
    model = builder_models.graph(nodes, {"w": builder_models.weights(5, 3, 9, 9)}, inputs=inputs)
    path = builder_models.saved(model, tmp_path / "m.onnx")
    found = made(source=f"onnx:{path}", image={"size": 24})
    assert [tensor.shape for tensor in found.inputs] == [(-1, 3, 24, 24)]
    assert (found.feed.kind, found.feed.size, found.feed.std) == ("image", 24, (255.0,) * 3)
    x = builder_models.weights(2, 3, 24, 24)
    np.testing.assert_allclose(run(found.graph, x=x)[0], run(path, x=x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"image": {"size": 24}}, "image: the model takes x [-1, 4]; allowed: one input [-1, 3, 24, 24]"),
        ({"tokenizer": "TOKENIZER"}, "tokenizer: the model takes x; allowed: input_ids"),
        ({"tokenizer": "no/such.json"}, "tokenizer: no/such.json: no such file"),
    ],
)
def test_a_model_that_does_not_take_what_is_declared_is_refused(tmp_path: Path, fields: Any, told: str) -> None:
    path = builder_models.saved(builder_models.linear(), tmp_path / "m.onnx")
    if fields.get("tokenizer") == "TOKENIZER":
        tiny_models.byte_level_tokenizer().save(str(tmp_path / "t.json"))
        fields = {"tokenizer": str(tmp_path / "t.json")}
    with pytest.raises(BuildError) as caught:
        made(source=f"onnx:{path}", **fields)
    assert told in str(caught.value)


def test_weights_beside_the_file_belong_to_the_source(tmp_path: Path) -> None:
    model = builder_models.chain(builder_models.weights(64, 64))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    declared = onnx_model(source=f"onnx:{tmp_path / 'm.onnx'}")
    before, x = source_hash(declared), builder_models.weights(2, 64)
    first = made(source=declared.source)
    np.testing.assert_allclose(run(first.graph, x=x)[0], x @ builder_models.weights(64, 64), rtol=1e-3, atol=1e-3)
    assert [path.name for path in first.folder.iterdir() if path.suffix in (".onnx", ".bin")] == ["fp32.onnx"]
    data = bytearray((tmp_path / "m.bin").read_bytes())
    data[:4] = np.float32(50).tobytes()
    (tmp_path / "m.bin").write_bytes(bytes(data))
    assert source_hash(declared) != before
    assert np.abs(run(made(source=declared.source).graph, x=x)[0] - run(first.graph, x=x)[0]).max() > 1
    (tmp_path / "m.bin").unlink()
    with pytest.raises(BuildError, match=r"m\.bin: no such file"):
        made(source=declared.source)


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_a_model_of_an_old_opset_becomes_int8_too(tmp_path: Path, opset: int) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w1"], ["y"], "second"),
    ]
    constants = {f"w{n}": builder_models.weights(16, 16, seed=n) / 4 for n in (0, 1)} | {"b": np.ones(16, np.float32)}
    inputs = [("x", TensorProto.FLOAT, ["n", 16])]
    fields = small_int8(tmp_path)
    builder_models.saved(builder_models.graph(nodes, constants, inputs=inputs, opset=opset), tmp_path / "m.onnx")
    built = builder_models.build(fields, tmp_path / "out")
    assert built.rows[0].score.passed, built.rows[0]
    assert built.rows[0].notes[0].startswith("2 of 2 products in int8")


def test_every_node_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = ["same", "same", "", ""]
    nodes, at = [], "x"
    for number, name in enumerate(names):
        nodes.append(helper.make_node("MatMul", [at, f"w{number}"], [f"h{number}"], name))
        nodes.append(helper.make_node("Tanh", [f"h{number}"], [f"a{number}"], ""))
        at = f"a{number}"
    nodes[-1].output[0] = "y"
    constants = {f"w{number}": builder_models.weights(4, 4, seed=number) for number in range(4)}
    path = builder_models.saved(builder_models.graph(nodes, constants), tmp_path / "m.onnx")
    found = [node.name for node in normalized(path).graph.node]
    assert len(set(found)) == len(found) == 8 and all(found)
