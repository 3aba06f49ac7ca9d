"""FP16 by measured ranges: overflow is caught, kept in float, and what is converted is what was judged."""

from __future__ import annotations

from typing import Any

import builder_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from builders.gate import judge
from builders.half import converted, emulated, kept_in_fp32, largest_values
from config_gen.sla.spec import Accuracy
from engines.session import OnnxSession

WIDTH = 32
RANDOM = np.random.default_rng(0)


def written_out(epsilon: float) -> onnx.ModelProto:
    """A LayerNorm as exporters of before opset 17 wrote it, between two products."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w0"], ["h"], "first"),
        node("ReduceMean", ["h", "last"], ["mean"], "mean"),
        node("Sub", ["h", "mean"], ["centred"], "centre"),
        node("Pow", ["centred", "two"], ["squared"], "square"),
        node("ReduceMean", ["squared", "last"], ["variance"], "variance"),
        node("Add", ["variance", "epsilon"], ["safe"], "add_epsilon"),
        node("Sqrt", ["safe"], ["deviation"], "root"),
        node("Div", ["centred", "deviation"], ["normal"], "divide"),
        node("MatMul", ["normal", "w1"], ["y"], "second"),
    ]
    constants = {
        "w0": np.eye(WIDTH, dtype=np.float32),
        "w1": builder_models.weights(WIDTH, 8, seed=1),
        "last": np.array([-1]),
        "two": np.float32(2),
        "epsilon": np.float32(epsilon),
    }
    return builder_models.graph(nodes, constants, inputs=[("x", TensorProto.FLOAT, ["n", WIDTH])])


def one_node(epsilon: float) -> onnx.ModelProto:
    """The same as one node, its input squared before: LayerNormalization computes in the type it is given."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squared"], "square"),
        helper.make_node("LayerNormalization", ["squared", "scale", "shift"], ["normal"], "norm", epsilon=epsilon),
        helper.make_node("MatMul", ["normal", "w1"], ["y"], "second"),
    ]
    constants = {
        "scale": np.ones(WIDTH, np.float32),
        "shift": builder_models.weights(WIDTH, seed=2),
        "w1": builder_models.weights(WIDTH, 8, seed=1),
    }
    return builder_models.graph(nodes, constants, inputs=[("x", TensorProto.FLOAT, ["n", WIDTH])])


def feeds(scale: float) -> list[dict[str, Any]]:
    return [{"x": (RANDOM.standard_normal((8, WIDTH)) * scale).astype(np.float32)} for _ in range(6)]


def reference(model: onnx.ModelProto, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In float64 by numpy, for both ways of writing it."""
    constants = {i.name: numpy_helper.to_array(i).astype(np.float64) for i in model.graph.initializer}
    found = []
    for feed in data:
        x = feed["x"].astype(np.float64)
        h = x @ constants["w0"] if "w0" in constants else x * x
        normal = (h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)
        normal = normal * constants.get("scale", 1) + constants.get("shift", 0)
        found.append({"y": (normal @ constants["w1"]).astype(np.float32)})
    return found


def run(model: onnx.ModelProto, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    session = OnnxSession(model.SerializeToString(), optimize=False)
    return [session.run(feed) for feed in data]


GATE = Accuracy(metric="cosine", min=0.999, worst=0.99)


@pytest.mark.parametrize(("make", "scale"), [(written_out, 100.0), (written_out, 1000.0), (one_node, 200.0)])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_a_layer_norm_that_overflows_is_caught_and_cured(make: Any, scale: float, epsilon: float) -> None:
    model, data = make(epsilon), feeds(scale)
    wanted = reference(model, data)
    assert judge(GATE, wanted, run(model, data)).passed
    naive = run(emulated(model, []), data)
    assert not all(np.isfinite(batch["y"]).all() for batch in naive) or not judge(GATE, wanted, naive).passed
    assert not judge(GATE, wanted, naive).passed
    kept = kept_in_fp32(model, largest_values(model, data[:3]))
    assert 0 < len(kept) < len(model.graph.node)
    assert judge(GATE, wanted[3:], run(emulated(model, kept), data[3:])).passed
    assert judge(GATE, wanted[3:], run(converted(model, kept), data[3:])).passed


def test_what_is_kept_says_why() -> None:
    model = written_out(1e-12)
    kept = {node.node: node.why for node in kept_in_fp32(model, largest_values(model, feeds(300.0)))}
    assert kept["mean"] == kept["variance"] == kept["square"] == "normalizes or accumulates"
    assert kept["add_epsilon"].startswith("variance reached ") and kept["add_epsilon"].endswith("fp16 ends at 65504")
    assert kept["root"].startswith("safe reached ")
    assert not {"first", "second", "centre", "divide"} & set(kept)
    small = {node.node: node.why for node in kept_in_fp32(model, largest_values(model, feeds(0.1)))}
    assert small["add_epsilon"] == "constant epsilon is 1e-12, which fp16 holds as 0"


def test_ranges_are_the_largest_values_over_all_batches() -> None:
    model, data = builder_models.linear(width=4), [{"x": builder_models.weights(5, 4, seed=at)} for at in range(3)]
    w, b = (numpy_helper.to_array(i) for i in model.graph.initializer)
    everything = np.concatenate([feed["x"] for feed in data])
    found = largest_values(model, data)
    assert found["x"] == pytest.approx(np.abs(everything).max())
    assert found["h"] == pytest.approx(np.abs(everything @ w).max(), rel=1e-5)
    assert found["y"] == pytest.approx(np.abs(everything @ w + b).max(), rel=1e-5)


def test_an_infinite_value_keeps_its_neighbours_in_float() -> None:
    model = builder_models.graph(
        [helper.make_node("Reciprocal", ["x"], ["r"], "inverse"), helper.make_node("Tanh", ["r"], ["y"], "tanh")], {}
    )
    largest = largest_values(model, [{"x": np.array([[0, 1, 2, 3]], np.float32)}])
    assert largest["r"] == np.inf
    assert {node.node for node in kept_in_fp32(model, largest)} == {"inverse", "tanh"}


@pytest.mark.parametrize("value", [70000.0, 1e-9])
def test_a_constant_that_fp16_cannot_hold_keeps_its_node(value: float) -> None:
    model = builder_models.graph(
        [helper.make_node("Mul", ["x", "c"], ["m"], "scale"), helper.make_node("Tanh", ["m"], ["y"], "tanh")],
        {"c": np.float32(value)},
    )
    kept = kept_in_fp32(model, {})
    assert [(node.node, node.op) for node in kept] == [("scale", "Mul")] and "constant c is" in kept[0].why
