"""A request to an LLM over tritonclient's asyncio gRPC streaming, timed at the moment a message arrives.

One stream a request: an error on a stream carries no request id, which is why a stream never holds two. Must not know
schedules, targets or locust.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton

from loadtest.answer import Answer
from loadtest.samples import Planned


async def once(request: Planned) -> AsyncIterator[dict[str, Any]]:
    """The only request of a stream; the server ends the stream after its answer."""
    yield {
        "model_name": request.model,
        "inputs": _inputs(request),
        "request_id": request.id,
        "parameters": {"tier": request.tier},
    }


async def receive(answer: Answer, responses: Any, clock: Callable[[], int]) -> None:
    """Take messages until the server ends the stream, or the answer is at its end.

    An error of the model before any token is a refusal; one of the connection (it has a status), a failure.
    """
    try:
        async for result, error in responses:
            if error is not None:
                lost = answer.begun or error.status()
                answer.fail(clock(), "failed" if lost else "rejected", str(error.message()))
                responses.cancel()
                return
            answer.take(clock(), result.get_response())
        answer.finish(clock())
    except grpc.RpcError as error:
        answer.fail(clock(), "failed", str(error.details()))


def _inputs(request: Planned) -> list[triton.InferInput]:
    sampling = {"max_tokens": request.max_tokens, "ignore_eos": True, "temperature": 0}
    return [
        *_prompt(request),
        _input("stream", True, "BOOL"),
        _input("sampling_parameters", json.dumps(sampling).encode(), "BYTES"),
    ]


def _prompt(request: Planned) -> list[triton.InferInput]:
    if request.ids:
        tensor = triton.InferInput("input_ids", [len(request.ids)], "INT64")
        tensor.set_data_from_numpy(np.array(request.ids, dtype=np.int64))
        return [tensor]
    return [_input("messages", json.dumps(request.messages).encode(), "BYTES")]


def _input(name: str, value: bytes | bool, datatype: str) -> triton.InferInput:
    tensor = triton.InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(np.array([value], dtype=bool if datatype == "BOOL" else object))
    return tensor
