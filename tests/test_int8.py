"""INT8 as Q/DQ: its form, the search that keeps the fewest products in float, and the correction of biases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import builder_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from builders.bias import biases, corrected, shifts
from builders.gate import judge, outputs_of
from builders.int8 import METHODS, Prepared, calibrate, for_onnxruntime, quantizable, quantized
from builders.search import Found, Search
from config_gen.spec import Accuracy
from engines.session import OnnxSession


def feeds(width: int, count: int = 6, seed: int = 0, scale: Any = 1.0) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [{"x": (random.standard_normal((16, width)) * scale).astype(np.float32)} for _ in range(count)]


def run(model: onnx.ModelProto, data: Sequence[Any]) -> list[dict[str, Any]]:
    return outputs_of(OnnxSession(model.SerializeToString(), optimize=False), data)


def search(model: onnx.ModelProto, accuracy: Accuracy, calibration: Any, evaluation: Any) -> tuple[Found, Prepared]:
    prepared = calibrate(model, calibration)
    sides = [(side, run(model, side)) for side in (calibration, evaluation)]
    return Search(prepared, accuracy, sides[0], sides[1], lambda what, done, total: None).run(), prepared


def initializers(model: onnx.ModelProto) -> dict[str, Any]:
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


# The form


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


# The search


def with_outlier_layer(at: int, layers: int = 4, width: int = 24) -> tuple[onnx.ModelProto, Any]:
    """Products of which number `at` reads one channel that is thousands of times larger than the others.

    The channel's own weights are as much smaller, so that in float it counts no more than any other.
    """
    node, constants, nodes, name = helper.make_node, {}, [], "x"
    for number in range(layers):
        w = builder_models.weights(width, width, seed=number) / np.float32(width**0.5)
        if number == at:
            gain = np.ones(width, np.float32)
            gain[3] = 3000
            constants["gain"] = gain
            w = w / gain[:, None]
            nodes.append(node("Mul", [name, "gain"], ["loud"], "loud"))
            name = "loud"
        constants[f"w{number}"] = w
        nodes.append(node("MatMul", [name, f"w{number}"], [f"h{number}"], f"layer{number}"))
        nodes.append(node("Tanh", [f"h{number}"], [f"a{number}"], f"tanh{number}"))
        name = f"a{number}"
    nodes[-1].output[0] = "y"
    model = builder_models.graph(nodes, constants, inputs=[("x", TensorProto.FLOAT, ["n", width])])
    return model, Accuracy(metric="cosine", min=0.995, worst=0.97)


def fewest_by_brute_force(prepared: Prepared, accuracy: Accuracy, side: Any) -> tuple[int, set[frozenset[str]]]:
    """How few products must stay in float, over all subsets and methods, and which sets of so many do."""
    wanted = run(prepared.model, side)
    for count in range(len(prepared.nodes) + 1):
        good = set()
        for kept, method in itertools.product(itertools.combinations(prepared.nodes, count), METHODS):
            made = quantized(prepared, method, [node for node in prepared.nodes if node not in kept])
            if judge(accuracy, wanted, run(made, side)).passed:
                good.add(frozenset(kept))
        if good:
            return count, good
    raise AssertionError


@pytest.mark.parametrize("at", range(4))
def test_a_layer_that_per_tensor_int8_ruins_is_found_and_it_alone_kept(at: int) -> None:
    model, accuracy = with_outlier_layer(at)
    calibration, evaluation = feeds(24, seed=1), feeds(24, seed=2)
    everywhere = quantized(calibrate(model, calibration), "MinMax", quantizable(model))
    assert not judge(accuracy, run(model, evaluation), run(everywhere, evaluation)).passed
    found, prepared = search(model, accuracy, calibration, evaluation)
    count, sets = fewest_by_brute_force(prepared, accuracy, evaluation)
    assert (count, sets) == (1, {frozenset([f"layer{at}"])})
    assert [hurt.node for hurt in found.kept] == [f"layer{at}"]
    assert found.model is not None and found.score.passed and found.products == 4
    again = judge(accuracy, run(model, evaluation), run(found.model, evaluation))
    assert again.passed and again.mean == pytest.approx(found.score.mean, abs=1e-4)
    product = next(node for node in found.model.graph.node if node.name == f"layer{at}")
    assert product.input[1] == f"w{at}"
    assert sum(array.dtype == np.int8 and array.ndim == 2 for array in initializers(found.model).values()) == 3


def test_where_all_pass_nothing_is_kept() -> None:
    model = builder_models.chain(builder_models.weights(16, 16) / 4, builder_models.weights(16, 8) / 4)
    found, _ = search(model, Accuracy(metric="cosine", min=0.99), feeds(16), feeds(16, seed=9))
    assert found.kept == () and found.model is not None and found.worst == ()


def test_a_gate_that_nothing_passes_names_the_layers_that_hurt_most_first() -> None:
    model, _ = with_outlier_layer(2)
    found, _ = search(model, Accuracy(metric="max_abs_error", max=1e-9), feeds(24), feeds(24, seed=2))
    assert found.model is None and not found.score.passed and found.score.reason.startswith("largest ")
    assert found.worst[0].node == "layer2" and len(found.worst) == 4
    damages = [hurt.damage for hurt in found.worst]
    assert damages == sorted(damages, reverse=True) and damages[0] > 10 * damages[1]


def test_what_passes_on_calibration_data_only_is_given_up_product_by_product() -> None:
    """The evaluation reaches what calibration never showed: its own gate sees it, and more is kept."""
    model, accuracy = with_outlier_layer(1)
    quiet, loud = feeds(24, seed=1), feeds(24, seed=2, scale=1)
    for feed in loud:
        feed["x"][:, :4] *= 40
    found, _ = search(model, accuracy, quiet, loud)
    if found.model is not None:
        assert judge(accuracy, run(model, loud), run(found.model, loud)).passed
    assert found.score.passed == (found.model is not None)


def test_a_single_product_that_hurts_is_named() -> None:
    model = builder_models.chain(builder_models.weights(8, 4))
    found, _ = search(model, Accuracy(metric="max_abs_error", max=1e-9), feeds(8), feeds(8, seed=2))
    assert found.model is None and [hurt.node for hurt in found.worst] == ["layer0"]


def test_a_model_without_products_is_not_called_int8() -> None:
    model = builder_models.graph([helper.make_node("Tanh", ["x"], ["y"], "tanh")], {})
    found, _ = search(model, Accuracy(metric="cosine", min=0.9), feeds(4), feeds(4, seed=2))
    assert found.model is None and not found.score.passed and found.products == 0


# Bias correction


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
