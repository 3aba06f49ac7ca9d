"""A request to a model that answers in one piece: what it is sent, by what its inputs say, and what came of it.

Must not know schedules, targets or locust.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from loadtest.answer import Answer
from loadtest.pictures import picture
from loadtest.samples import POOL, Planned
from loadtest.wire import Tensor, numbers, strings

FREE = 8  # of a dimension that may have any size
SETTLED = 0.05  # s

Inputs = Callable[[Planned], Sequence[Tensor]]


def takes_text(metadata: service_pb2.ModelMetadataResponse) -> bool:
    """Whether a model with these metadata is sent texts."""
    return any(tensor.name == "text" for tensor in metadata.inputs)


def inputs_of(metadata: service_pb2.ModelMetadataResponse) -> Inputs:
    """What turns a request into inputs of the model: its text, or its picture or arrays out of a pool made here.

    What is in a pool follows from its number alone. Of a model that also takes `pixels`, only its `image` is sent.
    """
    names = {tensor.name for tensor in metadata.inputs}
    if "text" in names:
        return lambda request: [strings("text", (1, 1), request.text.encode())]
    if "image" in names:
        pool = [[strings("image", (1, 1), picture(number))] for number in range(POOL)]
    else:
        pool = [_arrays(metadata, np.random.default_rng(number)) for number in range(POOL)]
    return lambda request: pool[request.item or 0]


async def ask(
    send: grpc.aio.UnaryUnaryMultiCallable,
    channel: grpc.aio.Channel,
    message: service_pb2.ModelInferRequest,
    answer: Answer,
    clock: Callable[[], int],
) -> None:
    """Send one request over the channel and wait for its answer.

    UNAVAILABLE is what Triton says before it runs a request: of a full queue, of one that waited too long, of a model
    that is not loaded. gRPC says the same of a broken connection, on which the request may well have run.
    """
    try:
        await send(message)
    except grpc.aio.AioRpcError as error:
        ended, refused = clock(), False
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            await asyncio.sleep(SETTLED)  # the channel hears of its own end a little later than the call
            refused = channel.get_state() is grpc.ChannelConnectivity.READY
        answer.fail(ended, "rejected" if refused else "failed", str(error.details()))
    else:
        answer.arrive(clock())


def _arrays(metadata: service_pb2.ModelMetadataResponse, random: np.random.Generator) -> list[Tensor]:
    """Every input of the model with random values: a batch of one, and FREE where a dimension is open."""
    found = []
    for tensor in metadata.inputs:
        shape = [1, *(FREE if size < 0 else size for size in tensor.shape[1:])]
        found.append(_values(tensor.name, tensor.datatype, shape, random))
    return found


def _values(name: str, datatype: str, shape: list[int], random: np.random.Generator) -> Tensor:
    """Normal numbers, or integers that any vocabulary has: 0 to 99."""
    kind = np.dtype(triton_to_np_dtype(datatype))
    if kind.kind == "f":
        return numbers(name, datatype, random.standard_normal(shape).astype(kind))
    whole = random.integers(0, 2 if kind.kind == "b" else 100, shape)
    if kind.kind == "O":
        return strings(name, shape, *(str(value).encode() for value in whole.flat))
    return numbers(name, datatype, whole.astype(kind))
