"""What an engine's stamp says of its place in a plan, and the configuration that `bench batching` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from engine_models import array_engine, graph, stamped, text_engine
from onnx import TensorProto, helper

from config_gen.batching import Batching
from config_gen.plan import Tensor
from config_gen.triton.model_config import parse
from engines.stamp import Feed, Stamp
from gapless import batching
from gapless.engine_plan import engine_plan


def test_texts_pictures_and_arrays_have_the_tensors_that_clients_send(tmp_path: Path) -> None:
    texts, arrays = Stamp.read(text_engine(tmp_path / "words")), Stamp.read(array_engine(tmp_path / "sums"))
    assert engine_plan("words", texts, Batching(4)).inputs == (Tensor("text", "TYPE_STRING", (1,)),)
    pictures = replace(texts, feed=Feed("image", size=8))
    assert engine_plan("seen", pictures, Batching(4)).inputs == (
        Tensor("image", "TYPE_STRING", (1,), optional=True),
        Tensor("pixels", "TYPE_UINT8", (-1, -1, 3), optional=True),
    )
    planned = engine_plan("sums", arrays, Batching(4))
    assert planned.inputs == (Tensor("a", "TYPE_FP32", (3,)), Tensor("b", "TYPE_INT64", (-1,)))
    assert planned.outputs == (Tensor("total", "TYPE_FP32", (3,)), Tensor("twice", "TYPE_INT64", (-1,)))
    assert (planned.name, planned.gpus, planned.batching) == ("sums", (), Batching(4))


def test_a_value_for_each_item_has_an_axis_since_triton_knows_no_tensor_without(tmp_path: Path) -> None:
    flat = graph([helper.make_node("Add", ["x", "x"], ["y"])], *({n: (TensorProto.FLOAT, ["b"])} for n in "xy"))
    stamp = Stamp.read(stamped(tmp_path, flat, Feed("arrays")))
    assert engine_plan("flat", stamp, Batching(1)).outputs == (Tensor("y", "TYPE_FP32", (1,)),)


def test_an_engine_of_tensorrt_is_on_a_card(tmp_path: Path) -> None:
    stamp = replace(Stamp.read(array_engine(tmp_path)), runtime="tensorrt")
    assert engine_plan("sums", stamp, Batching(4)).gpus == (0,)


def test_bench_batching_serves_a_copy_with_the_batch_it_is_asked_for(tmp_path: Path) -> None:
    array_engine(tmp_path / "built" / "sums" / "1")
    bench: Any = SimpleNamespace(name="sums", folder=tmp_path / "built" / "sums" / "1")
    folder = batching._with_batch(cast(batching.Bench, bench), tmp_path / "served", 3)
    made = parse((folder / "sums" / "config.pbtxt").read_text())
    assert (made.max_batch_size, made.dynamic_batching.max_queue_delay_microseconds) == (3, 2000)
    assert list(made.input[0].dims) == [3] and Stamp.read(folder / "sums" / "1").model == "tiny"
