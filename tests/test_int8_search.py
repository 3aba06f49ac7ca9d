"""The search for what must stay in float: the fewest products, those that hurt most, beside brute force."""

from __future__ import annotations

import itertools
from typing import Any

import builder_models
import numpy as np
import onnx
import pytest
from builder_models import feeds_of as feeds
from builder_models import initializers, search
from builder_models import run_plainly as run
from onnx import TensorProto, helper

from builders.gate import judge
from builders.int8 import METHODS, Prepared, calibrate, quantizable, quantized
from config_gen.sla.spec import Accuracy


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
    quiet, loud = feeds(24, seed=1), feeds(24, seed=2)
    for feed in loud:
        feed["x"][:, :4] *= 10
    assert [hurt.node for hurt in search(model, accuracy, quiet, quiet)[0].kept] == ["layer1"]
    found, prepared = search(model, accuracy, quiet, loud)
    assert found.model is not None and [hurt.node for hurt in found.kept] == ["layer1", "layer0"]
    assert fewest_by_brute_force(prepared, accuracy, loud) == (2, {frozenset(["layer0", "layer1"])})
    assert judge(accuracy, run(model, loud), run(found.model, loud)).passed


def test_a_single_product_that_hurts_is_named() -> None:
    model = builder_models.chain(builder_models.weights(8, 4))
    found, _ = search(model, Accuracy(metric="max_abs_error", max=1e-9), feeds(8), feeds(8, seed=2))
    assert found.model is None and [hurt.node for hurt in found.worst] == ["layer0"]


def test_a_model_without_products_is_not_called_int8() -> None:
    model = builder_models.graph([helper.make_node("Tanh", ["x"], ["y"], "tanh")], {})
    found, _ = search(model, Accuracy(metric="cosine", min=0.9), feeds(4), feeds(4, seed=2))
    assert found.model is None and not found.score.passed and found.products == 0
