"""Bias correction: the mean error that INT8 puts into each channel of a product is taken back from its bias.

Rounding weights and clipping activations shift a channel's mean, and shifts, unlike noise, add up from layer to layer
(Nagel et al. 2019, "Data-Free Quantization through Weight Equalization and Bias Correction", section 4.2; here measured
on calibration data instead of derived). Costs nothing when the engine runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engines.session import Arrays, OnnxSession

ERROR = "/error"


@dataclass(frozen=True, slots=True)
class Bias:
    """Where a product's bias is: input `at` of node `owner`; channels lie along `axis` of the product's output.

    `factor` is what the node multiplies its bias by, as a Gemm may.
    """

    owner: str
    at: int
    axis: int
    factor: float = 1.0


Shifts = Mapping[str, NDArray[np.float32]]  # by product: what its bias lacks, [channels]


def biases(model: onnx.ModelProto, nodes: Sequence[str]) -> dict[str, Bias]:
    """By product, of those that have a constant one: an input of their own, or that of the Add behind a MatMul."""
    constants = {initializer.name: initializer for initializer in model.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = {}
    for node in model.graph.node:
        if node.name not in set(nodes):
            continue
        behind = readers.get(node.output[0], [])
        if node.op_type in ("Conv", "Gemm") and len(node.input) > 2 and node.input[2] in constants:
            factor = next((a.f for a in node.attribute if a.name == "beta"), 1.0)
            if factor:
                found[node.name] = Bias(node.name, 2, 1, factor)
        elif node.op_type == "MatMul" and len(behind) == 1 and behind[0].op_type == "Add":
            at = next((i for i, name in enumerate(behind[0].input) if name in constants), None)
            if at is not None and len(constants[behind[0].input[at]].dims) == 1:
                found[node.name] = Bias(behind[0].name, at, -1)
    return found


def shifts(
    model: onnx.ModelProto, quantized: onnx.ModelProto, where: Mapping[str, Bias], feeds: Sequence[Arrays]
) -> Shifts:
    """How much lower, in the mean, each channel is in INT8 while everything before it is exact.

    One graph computes every product twice: in INT8, and exactly for what comes after it.
    """
    if not where:
        return {}
    session = OnnxSession(_twins(model, quantized, where).SerializeToString())
    sums: dict[str, Any] = dict.fromkeys(where, 0.0)
    count = 0
    for feed in feeds:
        rows = len(next(iter(feed.values())))
        count += rows
        for output, error in session.run(feed).items():
            name = output.removesuffix(ERROR)
            axis = where[name].axis % error.ndim
            mean = error.mean(axis=tuple(a for a in range(error.ndim) if a != axis))
            sums[name] = sums[name] + mean * rows
    return {name: np.asarray(total / count, np.float32) for name, total in sums.items()}


def _twins(model: onnx.ModelProto, quantized: onnx.ModelProto, where: Mapping[str, Bias]) -> onnx.ModelProto:
    """Outputs: exact minus INT8 of every product, under its name and ERROR."""
    exact = {node.name: node for node in model.graph.node}
    made = onnx.ModelProto()
    made.CopyFrom(quantized)
    del made.graph.node[:], made.graph.output[:]
    known = {initializer.name for initializer in made.graph.initializer}
    made.graph.initializer.extend(i for i in model.graph.initializer if i.name not in known)
    for node in quantized.graph.node:
        copy = made.graph.node.add()
        copy.CopyFrom(node)
        if node.name in where:
            result = node.output[0]
            copy.output[0] = f"{result}/int8"
            twin = made.graph.node.add()
            twin.CopyFrom(exact[node.name])
            twin.name = f"{node.name}/exact"
            made.graph.node.append(helper.make_node("Sub", [result, copy.output[0]], [node.name + ERROR]))
            made.graph.output.append(helper.make_tensor_value_info(node.name + ERROR, TensorProto.FLOAT, None))
    return made


def corrected(model: onnx.ModelProto, by: Shifts, where: Mapping[str, Bias], nodes: Sequence[str]) -> onnx.ModelProto:
    """`model` with the shifts of `nodes` added to their biases, each a constant of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    constants = {initializer.name: initializer for initializer in made.graph.initializer}
    owners = {node.name: node for node in made.graph.node}
    for name in nodes:
        if name in by:
            owner, at = owners[where[name].owner], where[name].at
            bias = numpy_helper.to_array(constants[owner.input[at]]) + by[name] / where[name].factor
            owner.input[at] = f"{name}/bias"
            made.graph.initializer.append(numpy_helper.from_array(bias.astype(np.float32), f"{name}/bias"))
    return made
