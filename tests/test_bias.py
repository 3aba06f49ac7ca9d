"""Bias correction: what INT8 shifts is taken back, from where a product's bias is."""

from __future__ import annotations

from typing import Any

import builder_models
import numpy as np
import onnx
import pytest
from builder_models import feeds_of as feeds
from builder_models import initializers, search
from builder_models import run_plainly as run
from onnx import TensorProto, helper, numpy_helper

from builders.bias import biases, corrected, shifts
from builders.int8 import calibrate, quantized
from config_gen.sla.spec import Accuracy


def biased_chain() -> onnx.ModelProto:
    return builder_models.chain(
        builder_models.weights(16, 16) / 3,
        builder_models.weights(16, 4, seed=1) / 3,
        biases=(builder_models.weights(16, seed=2), builder_models.weights(4, seed=3)),
    )


def with_weights(model: onnx.ModelProto, name: str, values: Any) -> onnx.ModelProto:
    """The model with other weights under another name, as a quantized model has them."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.graph.initializer.append(numpy_helper.from_array(values, f"{name}_other"))
    for node in other.graph.node:
        node.input[:] = [f"{name}_other" if read == name else read for read in node.input]
    return other


def test_a_known_shift_is_taken_back_exactly() -> None:
    """INT8 stands in by the same graph with other weights; on constant data its error is the same for every item."""
    model = biased_chain()
    exact = initializers(model)["w0"]
    w = exact + np.float32(0.05) * builder_models.weights(16, 16, seed=8)
    other = with_weights(model, "w0", w)
    where = biases(model, ("layer0", "layer1"))
    x = np.repeat(builder_models.weights(1, 16, seed=5), 8, axis=0)
    found = shifts(model, other, where, [{"x": x}, {"x": x[:3]}])
    np.testing.assert_allclose(found["layer0"], x[0] @ (exact - w), atol=1e-5)
    np.testing.assert_allclose(found["layer1"], 0, atol=1e-6)
    before, wanted = run(other, [{"x": x}])[0]["y"], run(model, [{"x": x}])[0]["y"]
    assert np.abs(before - wanted).max() > 0.01
    after = run(corrected(other, found, where, ("layer0", "layer1")), [{"x": x}])[0]["y"]
    np.testing.assert_allclose(after, wanted, atol=1e-5)
    untouched = run(corrected(other, found, where, ("layer1",)), [{"x": x}])[0]["y"]
    np.testing.assert_allclose(untouched, before, atol=1e-5)


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("op", ["Gemm", "Conv"])
def test_biases_inside_a_product_are_corrected_along_its_channels(op: str, beta: float) -> None:
    shape = (5, 6) if op == "Gemm" else (5, 6, 1, 1)
    more = {"transB": 1, "beta": beta} if op == "Gemm" else {}
    dims = ["n", 6] if op == "Gemm" else ["n", 6, 4, 4]
    nodes = [helper.make_node(op, ["x", "w", "b"], ["y"], "p", **more)]
    constants = {"w": builder_models.weights(*shape), "b": builder_models.weights(5, seed=1)}
    out = [("y", TensorProto.FLOAT, ["n", 5, *dims[2:]])]
    model = builder_models.graph(nodes, constants, inputs=[("x", TensorProto.FLOAT, dims)], outputs=out)
    other = with_weights(model, "w", constants["w"] * np.float32(1.1))
    x = np.ones((4, *[6, 4, 4][: len(dims) - 1]), np.float32)
    where = biases(model, ("p",))
    found = shifts(model, other, where, [{"x": x}])
    after = run(corrected(other, found, where, ("p",)), [{"x": x}])[0]["y"]
    np.testing.assert_allclose(after, run(model, [{"x": x}])[0]["y"], atol=1e-5)


def test_correction_takes_the_mean_error_of_real_int8_away() -> None:
    model, data, held_out = biased_chain(), feeds(16, 20, seed=1), feeds(16, 20, seed=2)
    for feed in (*data, *held_out):
        feed["x"] += 1.5  # data with a mean: rounding a weight then shifts what it makes
    prepared = calibrate(model, data)
    made = quantized(prepared, "MinMax", prepared.nodes)
    where = biases(model, prepared.nodes)
    mended = corrected(made, shifts(model, made, where, data), where, prepared.nodes)
    wanted = np.concatenate([batch["y"] for batch in run(model, held_out)])

    def mean_error(graph: onnx.ModelProto) -> float:
        got = np.concatenate([batch["y"] for batch in run(graph, held_out)])
        return float(np.abs((got - wanted).mean(0)).max())

    assert mean_error(mended) < mean_error(made) / 3
    names = {node.name: list(node.input) for node in mended.graph.node}
    assert names["bias0"][1] == "layer0/bias" and names["bias1"][1] == "layer1/bias"


def test_a_product_named_like_its_output_is_corrected_too() -> None:
    """Tools other than torch name a node after the tensor that it makes."""
    model = builder_models.linear()
    for node in model.graph.node:
        node.name = node.output[0]
    found, _ = search(model, Accuracy(metric="cosine", min=0.9), feeds(4), feeds(4, seed=2))
    assert found.model is not None


def test_only_constant_biases_that_one_product_owns_are_corrected() -> None:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "shared"),
        node("Add", ["h", "b"], ["p"], "add"),
        node("Mul", ["h", "p"], ["q"], "mul"),
        node("MatMul", ["q", "w"], ["r"], "dynamic"),
        node("Add", ["r", "x"], ["y"], "residual"),
    ]
    constants = {"w": builder_models.weights(4, 4), "b": builder_models.weights(4)}
    assert biases(builder_models.graph(nodes, constants), ("shared", "dynamic")) == {}
