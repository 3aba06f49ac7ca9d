"""A request to an LLM over gRPC's asyncio streaming, timed at the moment a message arrives.

One stream a request: an error on a stream carries no request id, which is why a stream never holds two. Must not know
schedules, targets or locust.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from loadtest.answer import Answer
from loadtest.samples import Planned
from loadtest.wire import Tensor, numbers, request, strings

TRUE = np.array([True])


async def once(planned: Planned) -> AsyncIterator[service_pb2.ModelInferRequest]:
    """The only request of a stream; the server ends the stream after its answer."""
    yield request(planned, _inputs(planned))


async def receive(answer: Answer, responses: grpc.aio.StreamStreamCall, clock: Callable[[], int]) -> None:
    """Take messages until the server ends the stream, or the answer is at its end.

    An error of the model before any token is a refusal; one of the connection, a failure.
    """
    try:
        async for response in responses:
            if response.error_message:
                answer.fail(clock(), "failed" if answer.begun else "rejected", response.error_message)
                responses.cancel()
                return
            answer.take(clock(), response.infer_response)
        answer.finish(clock())
    except grpc.RpcError as error:
        answer.fail(clock(), "failed", str(error.details()))


def _inputs(planned: Planned) -> list[Tensor]:
    sampling = {"max_tokens": planned.max_tokens, "ignore_eos": True, "temperature": 0}
    return [
        _prompt(planned),
        numbers("stream", "BOOL", TRUE),
        strings("sampling_parameters", (1,), json.dumps(sampling).encode()),
    ]


def _prompt(planned: Planned) -> Tensor:
    if planned.ids:
        return numbers("input_ids", "INT64", np.array(planned.ids, dtype=np.int64))
    return strings("messages", (1,), json.dumps(planned.messages).encode())
