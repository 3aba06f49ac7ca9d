"""One call on arrays, with onnxruntime. TensorRT's is engines.tensorrt_session; both have the same two methods.

Must not know items, batches or padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from engines.errors import EngineError
from engines.stamp import TENSORRT, Stamp, TensorSpec

Arrays = Mapping[str, NDArray[Any]]
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class Session(Protocol):
    """What runs an engine."""

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Every output by name; arrays on the host, first axis the batch."""


class OnnxSession:
    """onnxruntime on the best device that it has here: CUDA where its build has it, else the CPU.

    Threads do not spin between calls: on a shared machine the cores they would spin on are somebody else's.
    """

    def __init__(self, model: Path | bytes, *, optimize: bool = True, threads: int = 0) -> None:
        """`optimize=False` computes the graph as written, node by node. `threads` 0: one for each core.

        Raises EngineError.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        there = onnxruntime.get_available_providers()
        providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in there]
        source = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=providers)
        except Exception as error:  # its errors have no common class below
            name = "model" if isinstance(model, bytes) else str(model)
            raise EngineError(f"{name}: {one_line(error)}; give an ONNX model that onnxruntime can load") from None
        self._outputs = [output.name for output in self._session.get_outputs()]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(_spec(found) for found in self._session.get_inputs())

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(_spec(found) for found in self._session.get_outputs())

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Raises EngineError with onnxruntime's reason."""
        try:
            return dict(zip(self._outputs, self._session.run(None, dict(inputs)), strict=True))
        except Exception as error:  # as above
            raise EngineError(f"the model cannot compute this: {one_line(error)}") from None


def _spec(found: Any) -> TensorSpec:
    dtype = DTYPES.get(found.type)
    if dtype is None:
        allowed = ", ".join(DTYPES.values())
        raise EngineError(f"{found.name}: has the type {found.type}; allowed: {allowed}")
    return TensorSpec(found.name, dtype, tuple(d if isinstance(d, int) else -1 for d in found.shape))


def one_line(error: Exception) -> str:
    """A library's reason, cut to what a person reads."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-90:]}"


def open_session(stamp: Stamp, folder: Path, threads: int = 0) -> Session:
    """What the stamp says. Raises EngineError, also when this machine is not one it was built for."""
    stamp.check(folder)
    return session_on(stamp, folder / stamp.file, threads)


def session_on(stamp: Stamp, path: Path, threads: int = 0) -> Session:
    """The same on another file, unchecked. Raises EngineError."""
    if stamp.runtime in TENSORRT:
        from engines.tensorrt_session import TensorRTSession

        return TensorRTSession(stamp, path)
    return OnnxSession(path, threads=threads)


def constant_inputs(inputs: Sequence[TensorSpec], rows: int, length: int) -> dict[str, NDArray[Any]]:
    """Inputs that stand for a batch: ones where types are whole numbers, so that masks are open, zeros elsewhere."""
    made = {}
    for tensor in inputs:
        fill = np.ones if np.dtype(tensor.dtype).kind in "iub" else np.zeros
        made[tensor.name] = fill(_shape(tensor, rows, length), tensor.dtype)
    return made


def random_inputs(inputs: Sequence[TensorSpec], rows: int, length: int, seed: int) -> dict[str, NDArray[Any]]:
    """The same with random numbers where types are not whole."""
    random = np.random.default_rng(seed)
    made = constant_inputs(inputs, rows, length)
    return {n: random.standard_normal(a.shape).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in made.items()}


def _shape(tensor: TensorSpec, rows: int, length: int) -> list[int]:
    return [rows, *(length if dim < 0 else dim for dim in tensor.shape[1:])]
