"""Requests as messages of Triton's protocol, made without detours: the load generator shares its machine with a server.

Must not know how they are sent, or what came of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from loadtest.samples import Planned


class Tensor(NamedTuple):
    """An input of a request; `raw` as Triton takes it: row by row, little-endian, each string behind its length."""

    name: str
    datatype: str
    shape: Sequence[int]
    raw: bytes


def strings(name: str, shape: Sequence[int], *values: bytes) -> Tensor:
    """A tensor of strings; `shape` holds as many as there are values."""
    return Tensor(name, "BYTES", shape, b"".join(len(value).to_bytes(4, "little") + value for value in values))


def numbers(name: str, datatype: str, values: NDArray[np.generic]) -> Tensor:
    """A tensor of any other type. Where numpy has no BF16, its values come as float32, whose upper half it is."""
    if datatype == "BF16" and values.dtype == np.float32:
        values = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    return Tensor(name, datatype, values.shape, values.tobytes())


def request(planned: Planned, tensors: Sequence[Tensor]) -> service_pb2.ModelInferRequest:
    """The message that asks for what was planned. The tier is a parameter of ours, the priority one of Triton's."""
    made = service_pb2.ModelInferRequest(
        model_name=planned.model, id=planned.id, raw_input_contents=[tensor.raw for tensor in tensors]
    )
    for name, datatype, shape, _ in tensors:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.parameters["tier"].string_param = planned.tier
    if planned.priority:
        made.parameters["priority"].uint64_param = planned.priority
    return made
