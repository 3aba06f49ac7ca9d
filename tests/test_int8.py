"""INT8 as Q/DQ: weights per channel, everything symmetric, only before products; and the form for onnxruntime."""

from __future__ import annotations

from typing import Any

import builder_models
import numpy as np
import onnx
import pytest
from builder_models import feeds_of as feeds
from builder_models import initializers
from builder_models import run_plainly as run
from onnx import TensorProto, helper

from builders.int8 import METHODS, calibrate, for_onnxruntime, quantizable, quantized


def residual() -> onnx.ModelProto:
    """h feeds two products and a sum that is none."""
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "w0", "b0"], ["g"], "gemm", transB=1),
        node("Relu", ["g"], ["h"], "relu"),
        node("MatMul", ["h", "w1"], ["l"], "left"),
        node("MatMul", ["h", "w2"], ["r"], "right"),
        node("Mul", ["l", "r"], ["m"], "product"),
        node("Add", ["m", "h"], ["y"], "residual"),
    ]
    constants = {f"w{at}": builder_models.weights(8, 8, seed=at) for at in range(3)} | {"b0": np.ones(8, np.float32)}
    return builder_models.graph(nodes, constants, inputs=[("x", TensorProto.FLOAT, ["n", 8])])


def test_weights_become_int8_per_channel_and_everything_is_symmetric() -> None:
    model, data = residual(), feeds(8)
    prepared = calibrate(model, data)
    assert prepared.nodes == quantizable(model) == ("gemm", "left", "right")
    made = quantized(prepared, "MinMax", prepared.nodes)
    onnx.checker.check_model(made, full_check=True)
    constants, by_output = initializers(made), {n.output[0]: n for n in made.graph.node}
    for node in made.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert constants[node.input[2]].dtype == np.int8 and not constants[node.input[2]].any(), node.name
    for name, original, axis in (("gemm", "w0", 0), ("left", "w1", 1), ("right", "w2", 1)):
        product = next(node for node in made.graph.node if node.name == name)
        back = by_output[product.input[1]]
        whole, scales = constants[back.input[0]], constants[back.input[1]]
        attribute = {a.name: a.i for a in back.attribute}
        exact = initializers(model)[original]
        assert whole.dtype == np.int8 and attribute["axis"] == axis and scales.shape == (8,)
        np.testing.assert_allclose(scales, np.abs(exact).max(1 - axis) / 127, rtol=0.02)
        shape = (-1, 1) if axis == 0 else (1, -1)
        assert np.abs(whole * scales.reshape(shape) - exact).max() <= scales.max() * 0.51
        activation = by_output[product.input[0]]
        assert activation.op_type == "DequantizeLinear" and constants[activation.input[1]].ndim == 0


def test_only_products_read_rounded_tensors() -> None:
    model = residual()
    made = quantized(calibrate(model, feeds(8)), "MinMax", ("left", "right"))
    by_name = {node.name: node for node in made.graph.node}
    assert list(by_name["residual"].input) == ["m", "h"] and list(by_name["gemm"].input) == ["x", "w0", "b0"]
    assert "h" not in by_name["left"].input and by_name["left"].input[0] == by_name["right"].input[0]
    assert next(iter(made.graph.output)).name == "y"


def fake_quantized(array: Any, scale: Any) -> Any:
    return np.clip(np.rint(array / scale), -128, 127) * scale


def test_the_graph_computes_what_int8_would_by_numpy() -> None:
    w = builder_models.weights(8, 4)
    model, data = builder_models.chain(w), feeds(8)
    made = quantized(calibrate(model, data), "MinMax", ("layer0",))
    top = max(float(np.abs(feed["x"]).max()) for feed in data)
    x = data[0]["x"]
    wanted = fake_quantized(x, top * 2 / 254) @ fake_quantized(w, np.abs(w).max(0) / 127)
    error = np.abs(wanted - x @ w).max()
    for graph in (made, for_onnxruntime(made)):
        assert np.abs(run(graph, [data[0]])[0]["y"] - wanted).max() < error / 4 + 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_the_form_for_onnxruntime_is_uint8_around_128_and_computes_the_same(method: str) -> None:
    model, data = residual(), feeds(8, scale=3)
    made = quantized(calibrate(model, data), method, quantizable(model))
    served = for_onnxruntime(made)
    constants = initializers(served)
    quantizers = [node for node in served.graph.node if node.op_type == "QuantizeLinear"]
    assert len(quantizers) == 2
    for node in quantizers:
        assert constants[node.input[2]].dtype == np.uint8 and constants[node.input[2]] == 128
    assert sum(array.dtype == np.int8 and array.ndim == 2 for array in constants.values()) == 3
    for a, b in zip(run(made, data), run(served, data), strict=True):
        np.testing.assert_allclose(a["y"], b["y"], rtol=1e-5, atol=1e-5)


def test_batches_of_different_shapes_calibrate_together() -> None:
    model = builder_models.graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        {"w": builder_models.weights(4, 4)},
        inputs=[("x", TensorProto.FLOAT, ["n", "length", 4])],
        outputs=[("y", TensorProto.FLOAT, ["n", "length", 4])],
    )
    data = [{"x": builder_models.weights(rows, length, 4, seed=rows)} for rows, length in ((2, 3), (5, 1), (1, 30))]
    top = max(float(np.abs(feed["x"]).max()) for feed in data)
    prepared = calibrate(model, data)
    scale = initializers(quantized(prepared, "MinMax", ("mm",)))["x_scale"]
    assert scale == pytest.approx(top / 127.5, rel=0.01)
    assert set(prepared.ranges) == set(METHODS)
