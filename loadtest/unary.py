"""A request to a model that answers in one piece: what it is sent, by what its inputs say, and what came of it.

Must not know schedules, targets or locust.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from loadtest.answer import Answer
from loadtest.pictures import picture
from loadtest.samples import POOL, Planned

FREE = 8  # of a dimension that may have any size
SETTLED = 0.05  # s
UNAVAILABLE = str(grpc.StatusCode.UNAVAILABLE)

Inputs = Callable[[Planned], list[triton.InferInput]]


def takes_text(metadata: Any) -> bool:
    """Whether a model with these metadata is sent texts."""
    return any(tensor.name == "text" for tensor in metadata.inputs)


def inputs_of(metadata: Any) -> Inputs:
    """What turns a request into inputs of the model: its text, or its picture or arrays out of a pool made here.

    What is in a pool follows from its number alone. Of a model that also takes `pixels`, only its `image` is sent.
    """
    names = {tensor.name for tensor in metadata.inputs}
    if "text" in names:
        return lambda request: [_bytes("text", request.text.encode())]
    if "image" in names:
        pool = [[_bytes("image", picture(number))] for number in range(POOL)]
    else:
        pool = [_arrays(metadata, np.random.default_rng(number)) for number in range(POOL)]
    return lambda request: pool[request.item or 0]


async def ask(
    client: triton_aio.InferenceServerClient,
    inputs: list[triton.InferInput],
    request: Planned,
    answer: Answer,
    clock: Callable[[], int],
) -> None:
    """Send one request and wait for its answer.

    UNAVAILABLE is what Triton says before it runs a request: of a full queue, of one that waited too long, of a model
    that is not loaded. gRPC says the same of a broken connection, on which the request may well have run.
    """
    try:
        await client.infer(
            request.model,
            inputs,
            request_id=request.id,
            priority=request.priority,
            parameters={"tier": request.tier},
        )
    except InferenceServerException as error:
        ended, refused = clock(), False
        if error.status() == UNAVAILABLE:
            await asyncio.sleep(SETTLED)  # the channel hears of its own end a little later than the call
            refused = client._channel.get_state() is grpc.ChannelConnectivity.READY  # the client has no word for it
        answer.fail(ended, "rejected" if refused else "failed", str(error.message()))
    else:
        answer.arrive(clock())


def _bytes(name: str, value: bytes) -> triton.InferInput:
    return _input(name, np.array([[value]], dtype=object), "BYTES")


def _arrays(metadata: Any, random: np.random.Generator) -> list[triton.InferInput]:
    """Every input of the model with random values: a batch of one, and FREE where a dimension is open."""
    found = []
    for tensor in metadata.inputs:
        shape = [1, *(FREE if size < 0 else size for size in tensor.shape[1:])]
        found.append(_input(tensor.name, _values(tensor.datatype, shape, random), tensor.datatype))
    return found


def _values(datatype: str, shape: list[int], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Normal numbers, or integers that any vocabulary has: 0 to 99."""
    kind = np.dtype(triton_to_np_dtype(datatype))
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    whole = random.integers(0, 2 if kind.kind == "b" else 100, shape)
    if kind.kind == "O":
        return np.array([str(value).encode() for value in whole.flat], dtype=object).reshape(shape)
    return whole.astype(kind)


def _input(name: str, values: np.ndarray[Any, Any], datatype: str) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor
