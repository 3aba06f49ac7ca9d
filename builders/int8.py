"""INT8 as explicit Q/DQ in the ONNX graph: weights per channel, activations per tensor, both symmetric.

Only inputs of products (MatMul, Gemm, Conv with constant weights) are quantized; what a product writes stays in
floating point, so that a bias, an activation function and a residual beside it keep their precision. Ranges come from
onnxruntime's calibrators. Must not know sources or the SLA file.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from engines.cpu import adds_int8_exactly
from engines.session import Arrays

PRODUCTS = ("MatMul", "Gemm", "Conv")
PERCENTILE = 99.99
METHODS: Mapping[str, Mapping[str, Any]] = {  # of onnxruntime's calibration
    "MinMax": {"symmetric": True},
    "Entropy": {"symmetric": True},
    "Percentile": {"symmetric": True, "num_bins": 2048, "percentile": PERCENTILE},
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model whose products have ranges: `ranges` is onnxruntime's record of them."""

    model: onnx.ModelProto
    nodes: tuple[str, ...]  # that can be quantized, in the order of the graph
    ranges: Mapping[str, Any]  # by method


def quantizable(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of products with constant weights."""
    constants = {initializer.name for initializer in model.graph.initializer}
    return tuple(n.name for n in model.graph.node if n.op_type in PRODUCTS and n.input[1] in constants)


def calibrate(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> Prepared:
    """Ranges by every method, from batches that may all have other shapes."""
    nodes = quantizable(model)
    ranges: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        for method, extra in METHODS.items() if nodes else ():
            ranges[method] = _ranges(path, method, extra, feeds)
    return Prepared(model, nodes, ranges)


def _ranges(path: Path, method: str, extra: Mapping[str, Any], feeds: Sequence[Arrays]) -> Any:
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    with _quiet():
        calibrator = create_calibrator(
            path,
            list(PRODUCTS),
            augmented_model_path=str(path.with_name("augmented.onnx")),
            calibrate_method=CalibrationMethod[method],
            extra_options=dict(extra),
        )
        for feed in feeds:  # one at a time: its histograms take arrays of one shape only
            calibrator.collect_data(_Reader(feed))
        return calibrator.compute_data()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The calibrators print what they do."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


class _Reader:
    """One batch, in the form that onnxruntime's calibrators read."""

    def __init__(self, feed: Arrays) -> None:
        self._feeds = iter([dict(feed)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantized(prepared: Prepared, method: str, nodes: Sequence[str]) -> onnx.ModelProto:
    """The model with `nodes` in INT8 and everything else as it was."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    copy = onnx.ModelProto()
    copy.CopyFrom(prepared.model)
    excluded = [node.name for node in copy.graph.node if node.name not in set(nodes)]
    options = {
        "ActivationSymmetric": True,
        "WeightSymmetric": True,
        "QuantizeBias": False,
        "OpTypesToExcludeOutputQuantization": list(PRODUCTS),
    }
    maker = QDQQuantizer(
        copy,
        True,  # per channel
        not adds_int8_exactly(),  # weights of 7 bits, whose products cannot saturate
        QuantType.QInt8,
        QuantType.QInt8,
        prepared.ranges[method],
        list(nodes),
        excluded,
        list(PRODUCTS),
        options,
    )
    maker.quantize_model()
    maker.model.topological_sort()
    made: onnx.ModelProto = maker.model.model
    return _only_products_read_it(made, set(nodes))


def _only_products_read_it(model: onnx.ModelProto, nodes: set[str]) -> onnx.ModelProto:
    """Give the exact tensor back to all other readers: the library hands its quantized form to everyone."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.name in nodes or node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for at, name in enumerate(node.input):
            back = made_by.get(name)
            if back is not None and back.op_type == "DequantizeLinear" and back.input[0] in made_by:
                node.input[at] = made_by[back.input[0]].input[0]
    return model


def for_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same numbers in the form that onnxruntime's CPU kernels take: activations as uint8 around 128.

    TensorRT takes int8 around 0 only. onnxruntime turns one into the other by itself, but not where several products
    read one tensor, and then computes in floating point.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made_by = {name for node in made.graph.node for name in node.output}
    points = {
        node.input[2]
        for node in made.graph.node
        if node.op_type == "QuantizeLinear" or (node.op_type == "DequantizeLinear" and node.input[0] in made_by)
    }
    for initializer in made.graph.initializer:
        if initializer.name in points:
            zero = numpy_helper.to_array(initializer).astype(np.int16) + 128
            initializer.CopyFrom(numpy_helper.from_array(zero.astype(np.uint8), initializer.name))
    return made
