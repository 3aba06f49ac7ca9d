"""The graph in FP16: what the emulation rounds, what the conversion casts, and that both agree."""

from __future__ import annotations

from typing import Any

import builder_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_half import feeds, run, written_out

from builders.half import Kept, converted, emulated, float_tensors, kept_in_fp32, largest_values


def test_emulation_rounds_what_fp16_nodes_read_and_write() -> None:
    """Against numpy, in which every number that an fp16 node touches is an fp16."""
    model = builder_models.chain(builder_models.weights(16, 16), builder_models.weights(16, 4, seed=1))
    x = builder_models.weights(8, 16, seed=2) * 3
    w0, w1 = (numpy_helper.to_array(i) for i in model.graph.initializer)

    def half(array: Any) -> Any:
        return array.astype(np.float16).astype(np.float32)

    wanted = half(half(half(np.tanh(half(half(x) @ half(w0))))) @ half(w1))
    np.testing.assert_allclose(run(emulated(model, []), [{"x": x}])[0]["y"], wanted, rtol=2e-3, atol=2e-3)
    rough = np.abs(run(emulated(model, []), [{"x": x}])[0]["y"] - run(model, [{"x": x}])[0]["y"]).max()
    assert rough > 1e-5
    kept = [Kept("layer1", "MatMul", "")]
    exact = half(np.tanh(half(half(x) @ half(w0)))) @ w1
    np.testing.assert_allclose(run(emulated(model, kept), [{"x": x}])[0]["y"], exact, rtol=1e-3, atol=1e-3)
    got = run(emulated(model, kept), [{"x": x}])[0]["y"]
    assert np.abs(got - got.astype(np.float16)).max() > 0


@pytest.mark.parametrize("seed", range(3))
def test_emulation_and_conversion_agree(seed: int) -> None:
    model = builder_models.chain(
        builder_models.weights(16, 32, seed=seed),
        builder_models.weights(32, 8),
        biases=(np.ones(32, "f"), np.ones(8, "f")),
    )
    data = [{"x": builder_models.weights(8, 16, seed=seed + 9)}]
    model.graph.output.append(helper.make_tensor_value_info("a0", TensorProto.FLOAT, ["n", None]))
    for kept in ([], [Kept("layer0", "MatMul", "")], [Kept("bias0", "Add", ""), Kept("layer1", "MatMul", "")]):
        a, b = run(emulated(model, kept), data)[0], run(converted(model, kept), data)[0]
        assert list(a) == list(b) == ["y", "a0"]
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=5e-3, atol=2e-2)


def test_the_converted_graph_holds_fp16_weights_and_keeps_its_inputs_and_outputs() -> None:
    model = written_out(1e-5)
    kept = kept_in_fp32(model, largest_values(model, feeds(300.0)))
    made = converted(model, kept)
    onnx.checker.check_model(made, full_check=True)
    types = {i.name: i.data_type for i in made.graph.initializer}
    assert {name for name, kind in types.items() if kind == TensorProto.FLOAT16} == {"w0/half", "w1/half"}
    assert not {"w0", "w1"} & set(types)
    for before, after in ((model.graph.input, made.graph.input), (model.graph.output, made.graph.output)):
        assert [(i.name, i.type.tensor_type.elem_type) for i in before] == [
            (i.name, i.type.tensor_type.elem_type) for i in after
        ]
    inferred = onnx.shape_inference.infer_shapes(made, strict_mode=True)
    of_type = {i.name: i.type.tensor_type.elem_type for i in inferred.graph.value_info}
    by_name = {node.name: node for node in made.graph.node}
    exact = {node.node for node in kept}
    for node in model.graph.node:
        half_outputs = [
            of_type.get(name) == TensorProto.FLOAT16 for name in by_name[node.name].output if name in of_type
        ]
        assert not (node.name in exact and any(half_outputs)), node.name
        assert node.name in exact or all(half_outputs), node.name


def test_values_between_nodes_that_are_kept_never_become_fp16() -> None:
    """Each of two neighbours was kept, and what one handed to the other was cast to fp16 and back: infinite again."""
    made = converted(
        written_out(1e-5), kept_in_fp32(written_out(1e-5), largest_values(written_out(1e-5), feeds(300.0)))
    )
    for node in made.graph.node:
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT16:
            readers = [other for other in made.graph.node if node.output[0] in other.input]
            assert readers and all(reader.op_type != "Cast" for reader in readers), node.name


def test_a_constant_read_in_both_types_is_there_in_both() -> None:
    model = builder_models.graph(
        [
            helper.make_node("Mul", ["x", "c"], ["a"], "half"),
            helper.make_node("Mul", ["a", "c"], ["b"], "exact"),
            helper.make_node("Cast", ["b"], ["i"], "whole", to=TensorProto.INT64),
            helper.make_node("Cast", ["i"], ["y"], "back", to=TensorProto.FLOAT),
        ],
        {"c": np.full(4, 100.03, np.float32)},
    )
    x = np.array([[1.01, 2, -3, 4]], np.float32)
    made = converted(model, [Kept("exact", "Mul", "")])
    onnx.checker.check_model(made, full_check=True)
    rounded = (x.astype(np.float16) * np.float16(100.03)).astype(np.float32)
    np.testing.assert_array_equal(
        run(made, [{"x": x}])[0]["y"], np.trunc(rounded * np.float32(100.03)).astype(np.float16)
    )


def test_what_a_body_reads_from_outside_stays_as_it_was() -> None:
    """The bodies of If are left alone, and find the tensors around them under their names and in their types."""
    float_value = helper.make_tensor_value_info
    bodies = [
        helper.make_graph(
            [helper.make_node("Add", ["t", "c"], [f"{name}_out"], name)],
            name,
            [],
            [float_value(f"{name}_out", 1, None)],
        )
        for name in ("yes", "no")
    ]
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], "tanh"),
        helper.make_node("Mul", ["t", "c"], ["m"], "scale"),
        helper.make_node("ReduceMax", ["m"], ["top"], "top", keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["positive"], "compare"),
        helper.make_node("If", ["positive"], ["y"], "choice", then_branch=bodies[0], else_branch=bodies[1]),
    ]
    model = builder_models.graph(nodes, {"c": builder_models.weights(4), "zero": np.float32(0)})
    x = builder_models.weights(3, 4, seed=3)
    kept = kept_in_fp32(model, largest_values(model, [{"x": x}]))
    assert [node.node for node in kept] == ["choice"]
    got = run(converted(model, kept), [{"x": x}])[0]["y"]
    np.testing.assert_allclose(got, np.tanh(x) + builder_models.weights(4), atol=2e-3)


def test_only_float_tensors_that_are_computed_are_listed() -> None:
    found = float_tensors(written_out(1e-5))
    assert set(found) == {"x", "h", "mean", "centred", "squared", "variance", "safe", "deviation", "normal", "y"}
