"""A TensorRT plan on a GPU: each shape has its own buffers, the first GRAPHS of them a context and a CUDA graph, too.

A recorded graph holds addresses inside its context, which nothing else may then use; further shapes share one context
for each profile and run without graphs. Host arrays are copied through pinned memory on the session's own stream. The
flavours (`tensorrt`, `tensorrt_rtx`) have one API; nothing here asks which one it is. Must not know items or padding.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from engines.errors import EngineError
from engines.stamp import Stamp

GRAPHS = 48  # six batch sizes times eight lengths
DTYPES = {"FLOAT": torch.float32, "HALF": torch.float16, "INT32": torch.int32, "INT64": torch.int64}
DTYPES |= {"INT8": torch.int8, "UINT8": torch.uint8, "BOOL": torch.bool}

Shape = tuple[tuple[int, ...], ...]


class TensorRTSession:
    """One engine, one stream. Not for two threads at once."""

    def __init__(self, stamp: Stamp, path: Path) -> None:
        """Raises EngineError when the runtime refuses the plan."""
        trt = importlib.import_module(stamp.runtime)
        self._logger = trt.Logger(trt.Logger.ERROR)
        self._runtime = trt.Runtime(self._logger)
        self._runtime.engine_host_code_allowed = "version" in stamp.portable
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise EngineError(f"{path}: {stamp.runtime} refuses it; rebuild: {stamp.rebuild}")
        self._input_names = [tensor.name for tensor in stamp.inputs]
        self._output_names = [tensor.name for tensor in stamp.outputs]
        self._stream = torch.cuda.Stream()
        self._profiles = [
            {n: self._engine.get_tensor_profile_shape(n, i) for n in self._input_names}
            for i in range(self._engine.num_optimization_profiles)
        ]
        self._shared: dict[int, Any] = {}  # contexts by profile
        self._bound: dict[Shape, _Bound] = {}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Inputs are arrays, or tensors that are on the GPU already. Raises EngineError when no profile holds them."""
        shape = tuple(tuple(inputs[name].shape) for name in self._input_names)
        bound = self._bound.get(shape)
        if bound is None:
            bound = self._bind(shape)
        self._stream.wait_stream(torch.cuda.current_stream())  # on which inputs may still be computed
        with torch.cuda.stream(self._stream):
            for name in self._input_names:
                given = inputs[name]
                if not isinstance(given, torch.Tensor):
                    bound.pinned[name].copy_(torch.from_numpy(given))
                    given = bound.pinned[name]
                bound.inputs[name].copy_(given, non_blocking=True)
            bound.compute(self._stream)
            for name in self._output_names:
                bound.pinned[name].copy_(bound.outputs[name], non_blocking=True)
        self._stream.synchronize()
        return {name: bound.pinned[name].numpy().copy() for name in self._output_names}

    def _bind(self, shape: Shape) -> _Bound:
        at = tightest(self._profiles, self._input_names, shape)
        own = len(self._bound) < GRAPHS
        context = self._context(at) if own else self._shared.get(at)
        if context is None:
            context = self._shared[at] = self._context(at)
        bound = _Bound(self._engine, context, self._input_names, self._output_names, shape, self._stream)
        if own:
            bound.capture(self._stream)
        self._bound[shape] = bound
        return bound

    def _context(self, profile: int) -> Any:
        context = self._engine.create_execution_context()
        context.set_optimization_profile_async(profile, self._stream.cuda_stream)
        return context


def tightest(profiles: Sequence[Mapping[str, Any]], names: list[str], shape: Shape) -> int:
    """The place of the smallest profile that holds the shape: kernels were chosen for sizes near it.

    Raises EngineError when none does.
    """
    fits = [at for at, profile in enumerate(profiles) if _holds(profile, names, shape)]
    if not fits:
        raise EngineError(f"no profile of this engine holds the shapes {list(shape)}")
    return min(fits, key=lambda at: _room(profiles[at]))


def _holds(profile: Mapping[str, Any], names: list[str], shape: Shape) -> bool:
    return all(
        low <= dim <= high
        for name, dims in zip(names, shape, strict=True)
        for low, dim, high in zip(profile[name][0], dims, profile[name][2], strict=True)
    )


def _room(profile: Mapping[str, Any]) -> int:
    room = 1
    for _, _, most in profile.values():
        for dim in most:
            room *= dim
    return room


class _Bound:
    """Device and pinned memory for one set of shapes, and the graph of its computation."""

    def __init__(
        self, engine: Any, context: Any, names: list[str], outputs: list[str], shape: Shape, stream: torch.cuda.Stream
    ) -> None:
        self._context, self._shape, self._names = context, shape, names
        for name, dims in zip(names, shape, strict=True):
            context.set_input_shape(name, dims)
        types = {name: DTYPES[engine.get_tensor_dtype(name).name] for name in [*names, *outputs]}
        sizes = dict(zip(names, shape, strict=True)) | {n: tuple(context.get_tensor_shape(n)) for n in outputs}
        # Zeros, since the first run computes on them: what was left in memory may be no valid token id.
        device = {n: torch.zeros(size, dtype=types[n], device="cuda") for n, size in sizes.items()}
        self.pinned = {n: torch.empty(size, dtype=types[n], pin_memory=True) for n, size in sizes.items()}
        self.inputs = {n: device[n] for n in names}
        self.outputs = {n: device[n] for n in outputs}
        self._graph: torch.cuda.CUDAGraph | None = None
        self._enqueue(stream)
        stream.synchronize()

    def _enqueue(self, stream: torch.cuda.Stream) -> None:
        """Other shapes may use the same context: shapes and addresses are set each time."""
        for name, dims in zip(self._names, self._shape, strict=True):
            self._context.set_input_shape(name, dims)
        for name, tensor in (self.inputs | self.outputs).items():
            self._context.set_tensor_address(name, tensor.data_ptr())
        if not self._context.execute_async_v3(stream.cuda_stream):
            raise EngineError("TensorRT could not compute this; its log has the reason")

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Record the computation; TensorRT asks for one run before, which has been made.

        Without a graph where it does not let itself be recorded, as while it is still compiling a kernel.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self._enqueue(stream)
        except (RuntimeError, EngineError) as error:
            logging.warning("gapless: no CUDA graph for %s: %s", self._shape, error)
            return
        self._graph = graph

    def compute(self, stream: torch.cuda.Stream) -> None:
        if self._graph is None:
            self._enqueue(stream)
        else:
            self._graph.replay()
