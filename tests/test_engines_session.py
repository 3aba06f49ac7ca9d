"""Sessions: onnxruntime computes what numpy does and fails in one line; which TensorRT profile a shape gets."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from engine_models import array_graph, graph
from onnx import TensorProto, helper

from engines.errors import EngineError
from engines.session import OnnxSession, constant_inputs, one_line, random_inputs
from engines.stamp import TensorSpec
from engines.tensorrt_session import tightest


@pytest.mark.parametrize("optimize", [True, False])
def test_outputs_by_name_are_what_numpy_computes(tmp_path: Path, optimize: bool) -> None:
    onnx.save(array_graph(), tmp_path / "model.onnx")
    random = np.random.default_rng(1)
    a, b = random.standard_normal((5, 3)).astype(np.float32), random.integers(-9, 9, (5, 7))
    for model in (tmp_path / "model.onnx", (tmp_path / "model.onnx").read_bytes()):
        session = OnnxSession(model, optimize=optimize)
        assert session.inputs == (TensorSpec("a", "float32", (-1, 3)), TensorSpec("b", "int64", (-1, -1)))
        assert [tensor.name for tensor in session.outputs] == ["total", "twice"]
        found = session.run({"b": b, "a": a})
        np.testing.assert_allclose(found["total"], a + b.sum(1, keepdims=True), rtol=1e-6)
        np.testing.assert_array_equal(found["twice"], 2 * b)


def test_what_cannot_be_computed_is_told_in_one_line() -> None:
    session = OnnxSession(array_graph().SerializeToString())
    for wrong in ({}, {"a": np.zeros((2, 4), np.float32), "b": np.zeros((2, 1), np.int64)}, {"a": np.zeros((2, 3))}):
        with pytest.raises(EngineError) as caught:
            session.run(wrong)
        text = str(caught.value)
        assert text.startswith("the model cannot compute this: ") and "\n" not in text and len(text) < 400


def test_what_is_no_model_is_named_with_what_to_give(tmp_path: Path) -> None:
    for content in (None, b"", b"junk"):
        path = tmp_path / "model.onnx"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(EngineError) as caught:
            OnnxSession(path)
        text = str(caught.value)
        assert text.startswith(f"{path}: ") and text.endswith("give an ONNX model that onnxruntime can load")
        assert "\n" not in text


def test_a_type_that_cannot_be_served_is_refused() -> None:
    strings = graph(
        [helper.make_node("Identity", ["words"], ["same"])],
        {"words": (TensorProto.STRING, ["batch"])},
        {"same": (TensorProto.STRING, ["batch"])},
    )
    session = OnnxSession(strings.SerializeToString())
    with pytest.raises(EngineError, match=r"words: has the type tensor\(string\); allowed: float32, float16"):
        _ = session.inputs


def test_made_inputs_have_the_shapes_and_types_asked_for() -> None:
    specs = [
        TensorSpec("ids", "int64", (-1, -1)),
        TensorSpec("x", "float16", (-1, 3, -1)),
        TensorSpec("m", "bool", (-1,)),
    ]
    constant, first, again = constant_inputs(specs, 4, 9), random_inputs(specs, 4, 9, 1), random_inputs(specs, 4, 9, 1)
    other = random_inputs(specs, 4, 9, 2)
    for made in (constant, first):
        assert {n: (a.shape, str(a.dtype)) for n, a in made.items()} == {
            "ids": ((4, 9), "int64"),
            "x": ((4, 3, 9), "float16"),
            "m": ((4,), "bool"),
        }
        assert made["ids"].all() and made["m"].all()  # a mask of them is open
    assert not constant["x"].any()
    np.testing.assert_array_equal(first["x"], again["x"])
    assert (first["x"] != other["x"]).any()


def test_a_long_reason_is_cut_and_a_short_one_is_not() -> None:
    assert one_line(ValueError("a\n  b\tc")) == "a b c"
    cut = one_line(ValueError("begin " + "x" * 1000 + " end"))
    assert cut.startswith("begin ") and cut.endswith(" end") and len(cut) <= 300


def test_a_shape_gets_the_smallest_profile_that_holds_it() -> None:
    """Against all of them tried; two inputs of two dimensions each."""
    dice = random.Random(3)
    refused = chosen = 0
    for _ in range(600):
        profiles = []
        for _ in range(dice.randrange(1, 5)):
            lows = [dice.randrange(1, 4) for _ in range(4)]
            highs = [low + dice.randrange(0, 9) for low in lows]
            ranges = [((lows[i], lows[i + 1]), (), (highs[i], highs[i + 1])) for i in (0, 2)]
            profiles.append(dict(zip("ab", ranges, strict=True)))
        shape = tuple((dice.randrange(1, 7), dice.randrange(1, 7)) for _ in "ab")
        sizes = {}
        for at, profile in enumerate(profiles):
            flat = list(itertools.chain(*shape))
            low, high = ([*profile["a"][end], *profile["b"][end]] for end in (0, 2))
            if all(a <= b <= c for a, b, c in zip(low, flat, high, strict=True)):
                sizes[at] = int(np.prod(high))
        if sizes:
            assert sizes[tightest(profiles, ["a", "b"], shape)] == min(sizes.values())
            chosen += 1
        else:
            with pytest.raises(EngineError, match="no profile of this engine holds the shapes"):
                tightest(profiles, ["a", "b"], shape)
            refused += 1
    assert chosen > 20 and refused > 20


def test_short_texts_get_the_profile_of_short_texts() -> None:
    short, long = (
        {"ids": ((1, 1), (8, top // 2), (32, top)), "mask": ((1, 1), (8, top // 2), (32, top))} for top in (64, 256)
    )
    names = ["ids", "mask"]
    for profiles, small in (([short, long], 0), ([long, short], 1)):
        assert tightest(profiles, names, ((1, 16), (1, 16))) == small
        assert tightest(profiles, names, ((32, 64), (32, 64))) == small
        assert tightest(profiles, names, ((1, 65), (1, 65))) == 1 - small
    for shape in ((33, 16), (1, 257), (0, 16)):
        with pytest.raises(EngineError, match="no profile"):
            tightest([short, long], names, (shape, shape))
