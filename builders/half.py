"""FP16 in the ONNX graph: which nodes can be, decided by what they computed on real data, and the converted model.

TensorRT 11 is strongly typed: a graph computes in the types it is written in. onnxruntime's CPU has no fp16 kernels and
drops roundings between neighbours, which hides an overflow; the gate therefore runs `emulated`: every tensor that would
be fp16 is rounded to it. Must not know sources or the SLA file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engines.session import Arrays, OnnxSession

LARGEST = 65504.0  # of fp16
SMALLEST = 2.0**-24
HEADROOM = 2.0  # other data may be this much larger than what was measured
# Accumulate many values, or divide by what may be tiny: their inside overflows though inputs and outputs may not.
NORMALIZING = """
LayerNormalization InstanceNormalization GroupNormalization BatchNormalization RMSNormalization LpNormalization Softmax
LogSoftmax Exp Log Pow ReduceL1 ReduceL2 ReduceLogSumExp ReduceMean ReduceSum ReduceSumSquare CumSum
"""
SENSITIVE = frozenset(NORMALIZING.split())
UNTYPED = "Shape Size Range NonZero TopK Resize Upsample NonMaxSuppression RoiAlign Loop If Scan"
FOREIGN = frozenset(UNTYPED.split())  # made of shapes and indices, or without an fp16 form in ONNX


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that stays in floating point of 32 bits, and why."""

    node: str
    op: str
    why: str


def largest_values(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> dict[str, float]:
    """The largest absolute value that each float tensor took on these batches; infinite where one was not finite."""
    names = [name for name in float_tensors(model) if name not in {i.name for i in model.graph.input}]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {output.name for output in probe.graph.output}
    probe.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in known
    )
    session = OnnxSession(probe.SerializeToString(), optimize=False)
    largest: dict[str, float] = {}
    for feed in feeds:
        for name, array in (dict(feed) | session.run(feed)).items():
            if array.dtype == np.float32 and array.size:
                top = float(np.abs(array).max())
                largest[name] = max(largest.get(name, 0.0), top if np.isfinite(top) else np.inf)
    return largest


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """Names of float32 tensors that nodes or inputs of the graph make."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    constants = {initializer.name for initializer in graph.initializer}
    return [
        info.name
        for info in (*graph.input, *graph.value_info, *graph.output)
        if info.type.tensor_type.elem_type == TensorProto.FLOAT and info.name not in constants
    ]


def kept_in_fp32(model: onnx.ModelProto, largest: Mapping[str, float]) -> list[Kept]:
    """Nodes that must not be fp16: by kind, by measured range, by constants that fp16 cannot hold."""
    constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    graph = onnx.shape_inference.infer_shapes(model).graph
    typed = {info.name for info in (*graph.value_info, *graph.output) if info.type.WhichOneof("value")}
    kept = []
    for node in model.graph.node:
        unknown = any(name and name not in typed for name in node.output)
        why = "what it writes has no known type" if unknown else _why(node, largest, constants)
        if why:
            kept.append(Kept(node.name, node.op_type, why))
    return kept


def _why(node: onnx.NodeProto, largest: Mapping[str, float], constants: Mapping[str, NDArray[Any]]) -> str:
    if node.op_type in FOREIGN:
        return "no fp16 form"
    if node.op_type in SENSITIVE:
        return "normalizes or accumulates"
    if node.op_type == "Clip" and not (len(node.input) == 3 and all(node.input[1:])):
        return "its missing bound is the largest float, which fp16 does not hold"
    for name in (*node.input, *node.output):
        if largest.get(name, 0.0) * HEADROOM > LARGEST:
            return f"{name} reached {largest[name]:.3g}; fp16 ends at {LARGEST:g}"
    for name in node.input:
        array = constants.get(name)
        if array is not None and array.dtype == np.float32 and array.size:
            sizes = np.abs(array)
            if sizes.max() > LARGEST:
                return f"constant {name} is {sizes.max():.3g}"
            if array.size == 1 and 0 < sizes.max() < SMALLEST:
                return f"constant {name} is {sizes.max():.3g}, which fp16 holds as 0"
    return ""


def converted(model: onnx.ModelProto, kept: Iterable[Kept]) -> onnx.ModelProto:
    """The model with all other nodes in fp16; its inputs and outputs stay as they are.

    A cast stands only where an fp16 node and one that is kept meet: between two that are kept, values stay in float32.
    """
    return _Conversion(model, {node.node for node in kept}).run()


class _Conversion:
    """Walks the nodes in order; every tensor gets a form in fp16, in float32, or both, made when first asked for."""

    def __init__(self, model: onnx.ModelProto, exact: set[str]) -> None:
        self._exact, self._floats = exact, set(float_tensors(model))
        self._made = onnx.ModelProto()
        self._made.CopyFrom(model)
        del self._made.graph.node[:], self._made.graph.value_info[:]
        self._nodes = model.graph.node
        self._constants = {i.name: i for i in model.graph.initializer if i.data_type == TensorProto.FLOAT}
        # Read where casts are not put: by whoever runs the model, and inside the bodies of If, Loop and Scan.
        self._fixed = {output.name for output in model.graph.output} | set(_captured(model.graph.node))
        there = (*self._constants, *(tensor.name for tensor in model.graph.input))
        self._forms: dict[int, dict[str, str]] = {TensorProto.FLOAT: {n: n for n in there}, TensorProto.FLOAT16: {}}

    def run(self) -> onnx.ModelProto:
        for node in self._nodes:
            to = TensorProto.FLOAT if node.name in self._exact else TensorProto.FLOAT16
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [self._form(name, to) for name in node.input]
            self._made.graph.node.append(copy)
            self._write(self._made.graph.node[-1], to)
        self._drop_unread_constants()
        return self._made

    def _form(self, name: str, to: int) -> str:
        """The name of a tensor in one type, cast where it is not there yet; of what is not float, its own."""
        if name not in self._floats and name not in self._constants:
            return name
        forms = self._forms[to]
        if name not in forms:
            forms[name] = f"{name}/{'half' if to == TensorProto.FLOAT16 else 'float'}"
            if name in self._constants:
                values = numpy_helper.to_array(self._constants[name]).astype(np.float16)
                self._made.graph.initializer.append(numpy_helper.from_array(values, forms[name]))
            else:
                other = self._forms[TensorProto.FLOAT if to == TensorProto.FLOAT16 else TensorProto.FLOAT16][name]
                self._cast(other, forms[name], to)
        return forms[name]

    def _cast(self, source: str, target: str, to: int) -> None:
        self._made.graph.node.append(helper.make_node("Cast", [source], [target], name=f"{target}/cast", to=to))

    def _write(self, node: onnx.NodeProto, to: int) -> None:
        """Say in which type the results are; those that must be float32 under their own name are cast back to it."""
        results = [name for name in node.output if name in self._floats]
        self._forms[to] |= {name: name for name in results}
        if to == TensorProto.FLOAT or not results:
            return
        _retype(node)
        for name in set(results) & self._fixed:
            half = f"{name}/half"
            node.output[:] = [half if output == name else output for output in node.output]
            self._forms[TensorProto.FLOAT16][name], self._forms[TensorProto.FLOAT][name] = half, name
            self._cast(half, name, TensorProto.FLOAT)

    def _drop_unread_constants(self) -> None:
        read = {name for node in self._made.graph.node for name in node.input} | self._fixed
        kept = [i for i in self._made.graph.initializer if i.name in read]
        del self._made.graph.initializer[:]
        self._made.graph.initializer.extend(kept)


def _captured(nodes: Iterable[onnx.NodeProto], inside: bool = False) -> Iterator[str]:
    """Names read inside bodies."""
    for node in nodes:
        if inside:
            yield from node.input
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _captured(body.node, True)
                yield from (output.name for output in body.output)


def _retype(node: onnx.NodeProto) -> None:
    """Attributes that say float32 of a result: of Cast, ConstantOfShape, EyeLike and their like."""
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        elif attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(attribute.t).astype(np.float16)
            attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))


def emulated(model: onnx.ModelProto, kept: Iterable[Kept]) -> onnx.ModelProto:
    """A float32 graph that rounds like `converted` does: constants and results of every fp16 node go through fp16."""
    names, floats = {node.node for node in kept}, set(float_tensors(model))
    half = [node for node in model.graph.node if node.name not in names]
    rounded = {name for node in half for name in node.output if name in floats}
    entering = {name for node in half for name in node.input if name in floats} - rounded
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for tensor in model.graph.input:
        if tensor.name in entering:
            made.graph.node.extend(_round(tensor.name, f"{tensor.name}/half"))
    for node in model.graph.node:
        copy = made.graph.node.add()
        copy.CopyFrom(node)
        is_half = node.name not in names
        if is_half:
            copy.input[:] = [f"{name}/half" if name in entering else name for name in node.input]
            copy.output[:] = [f"{name}/exact" if name in rounded else name for name in node.output]
        for name in node.output:
            if is_half and name in rounded:
                made.graph.node.extend(_round(f"{name}/exact", name))
            elif name in entering:
                made.graph.node.extend(_round(name, f"{name}/half"))
    exact = {name for node in model.graph.node if node.name in names for name in node.input}
    for initializer in made.graph.initializer:
        if initializer.data_type == TensorProto.FLOAT and initializer.name not in exact:
            values = numpy_helper.to_array(initializer).astype(np.float16).astype(np.float32)
            initializer.CopyFrom(numpy_helper.from_array(values, initializer.name))
    return made


def _round(source: str, target: str) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    half = f"{target}/fp16"
    return (
        helper.make_node("Cast", [source], [half], name=f"{half}/to", to=TensorProto.FLOAT16),
        helper.make_node("Cast", [half], [target], name=f"{half}/back", to=TensorProto.FLOAT),
    )
