"""Engines that take arrays, on a real Triton: values, batches, what their configuration says, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
from engine_clients import ask, counts, get, infer, stub_of
from engine_models import array_graph, batch, build, graph, repository, stamped
from onnx import TensorProto, helper
from serving import Serving, serve
from tritonclient.utils import InferenceServerException

from engines.stamp import Feed

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def models(folder: Path) -> Path:
    """sums: two inputs, built; small: the same, one at a time; looked: rows of TABLE; flat: no axis but the batch."""
    onnx.save(array_graph(), folder / "sums.onnx")
    sums = build("sums", folder / "built", source=f"onnx:{folder / 'sums.onnx'}", max_batch_size=8)
    look = [
        helper.make_node("Gather", ["table", "at"], ["rows"]),
        helper.make_node("Squeeze", ["rows", "axis"], ["row"]),
    ]
    looked = graph(look, {"at": (INT64, ["b", 1])}, {"row": (FLOAT, ["b", 4])}, {"table": TABLE, "axis": np.array([1])})
    twice = [helper.make_node("Add", ["x", "x"], ["y"])]
    flat = graph(twice, {"x": (FLOAT, ["b"])}, {"y": (FLOAT, ["b"])})
    named = graph(
        [helper.make_node("Add", ["image", "text"], ["y"])],
        *({name: (FLOAT, ["b", 2]) for name in names} for names in (("image", "text"), ("y",))),
    )
    alone = graph([helper.make_node("Neg", ["pixels"], ["y"])], {"pixels": (FLOAT, ["b", 2])}, {"y": (FLOAT, ["b", 2])})
    hand = {
        name: stamped(folder / name, made, Feed("arrays"), max_batch_size=16)
        for name, made in {"looked": looked, "flat": flat, "named": named, "alone": alone}.items()
    }
    where = repository(folder / "repository", sums=sums, small=sums, **hand)
    batch(where, "small", 1)
    batch(where, "looked", delay=0.3)  # so that requests meet in one batch
    (where / "sums" / "config.pbtxt").write_text('name: "sums" backend: "python" instance_group { kind: KIND_CPU }')
    return where


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("arrays")
    with serve(models(folder), folder, model="sums") as serving:
        yield serving


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_two_inputs_and_two_outputs_of_a_batch(serving: Serving, rows: int) -> None:
    random = np.random.default_rng(rows)
    a, b = random.standard_normal((rows, 3)).astype(np.float32), random.integers(-9, 9, (rows, 5))
    found = infer(serving, "sums", a=a, b=b)
    np.testing.assert_allclose(found["total"], a + b.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(found["twice"], 2 * b)


def test_the_same_over_http_in_json(serving: Serving) -> None:
    inputs = [
        {"name": "a", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]},
        {"name": "b", "shape": [2, 2], "datatype": "INT64", "data": [10, 1, 20, 2]},
    ]
    status, text = serving.post("infer", {"inputs": inputs})
    assert status == 200, text
    outputs = {output["name"]: output for output in json.loads(text)["outputs"]}
    assert outputs["total"]["shape"] == [2, 3] and outputs["total"]["data"] == [12, 13, 14, 26, 27, 28]
    assert outputs["twice"]["data"] == [20, 2, 40, 4]


def test_the_configuration_is_completed_from_the_stamp(serving: Serving) -> None:
    config = get(serving, "/v2/models/sums/config")
    assert config["max_batch_size"] == 8
    found = {t["name"]: (t["data_type"], t["dims"]) for t in (*config["input"], *config["output"])}
    assert found == {
        "a": ("TYPE_FP32", [3]),
        "b": ("TYPE_INT64", [-1]),
        "total": ("TYPE_FP32", [3]),
        "twice": ("TYPE_INT64", [-1]),
    }
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0


def test_a_smaller_batch_in_the_configuration_stays(serving: Serving) -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((2, 1), np.int64)
    assert get(serving, "/v2/models/small/config")["max_batch_size"] == 1
    assert infer(serving, "small", a=a[:1], b=b[:1])["total"].tolist() == [[2, 2, 2]]
    with pytest.raises(InferenceServerException, match="batch-size must be <= 1"):
        infer(serving, "small", a=a, b=b)
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8"):
        infer(serving, "sums", a=np.ones((9, 3), np.float32), b=np.ones((9, 1), np.int64))


def test_inputs_that_do_not_fit_are_refused_and_hurt_nobody(serving: Serving) -> None:
    b = np.ones((2, 1), np.int64)
    for wrong in (
        {"a": np.ones((2, 4), np.float32), "b": b},
        {"a": np.ones((2, 3)), "b": b},
        {"a": np.ones((2, 3), np.float32)},
        {"a": np.ones((2, 3), np.float32), "b": b[:1]},
    ):
        with pytest.raises(InferenceServerException):
            infer(serving, "sums", **wrong)
    assert infer(serving, "sums", a=np.ones((2, 3), np.float32), b=b)["total"].tolist() == [[2, 2, 2]] * 2


def test_a_request_without_rows_is_answered_and_hurts_nobody(serving: Serving) -> None:
    stub = stub_of(serving, "sums")
    with pytest.raises(InferenceServerException) as caught:
        infer(serving, "sums", a=np.ones((0, 3), np.float32), b=np.ones((0, 1), np.int64))
    assert "\n" not in str(caught.value.message())
    assert infer(serving, "sums", a=np.ones((1, 3), np.float32), b=np.ones((1, 1), np.int64))["twice"].tolist() == [[2]]
    assert stub_of(serving, "sums") == stub


def test_arrays_with_no_axis_but_the_batch(serving: Serving) -> None:
    for shape in ((3, 1), (1, 1)):
        x = np.arange(shape[0], dtype=np.float32).reshape(shape)
        assert infer(serving, "flat", x=x)["y"].tolist() == (2 * x).tolist()


def test_inputs_may_have_the_names_of_other_kinds(serving: Serving) -> None:
    one, two = np.array([[1, 2], [3, 4]], np.float32), np.array([[10, 20], [30, 40]], np.float32)
    assert infer(serving, "named", image=one, text=two)["y"].tolist() == [[11, 22], [33, 44]]
    assert infer(serving, "alone", pixels=one)["y"].tolist() == [[-1, -2], [-3, -4]]


def test_a_request_that_cannot_be_computed_fails_alone(serving: Serving) -> None:
    """An index beyond the table fails in the middle of the computation, in one batch with good ones."""
    found: dict[int, Any] = {}
    before = counts(serving, "looked")
    with grpcclient.InferenceServerClient(f"127.0.0.1:{serving.facts['grpc_port']}") as client:

        def one(at: int) -> None:
            try:
                found[at] = ask(client, "looked", at=np.array([[at]]))["row"].tolist()
            except InferenceServerException as error:
                found[at] = error.message()

        threads = [threading.Thread(target=one, args=(at,)) for at in (1, 5, 99, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    after = counts(serving, "looked")
    assert after[1] - before[1] < 4  # they were together
    assert [found[at] for at in (1, 5, 9)] == [[TABLE[at].tolist()] for at in (1, 5, 9)]
    assert "indices element out of data bounds" in found[99] and "\n" not in found[99]
