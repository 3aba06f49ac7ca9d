"""A gRPC server that streams as Triton does, for tests of the load generator. What it answers is up to the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

Reply = pb.ModelStreamInferResponse
Answer = Callable[["Asked"], Iterator[Reply]]


class Asked:
    """A request as the fake got it. `gone()` tells whether the client has left."""

    def __init__(self, raw: Any, gone: Callable[[], bool]) -> None:
        tensors = {tensor.name: data for tensor, data in zip(raw.inputs, raw.raw_input_contents, strict=True)}
        self.id = raw.id
        self.tier = raw.parameters["tier"].string_param
        self.messages = json.loads(tensors["messages"][4:])
        self.sampling = json.loads(tensors["sampling_parameters"][4:])
        self.gone = gone


def tokens(asked: Asked, cumulative: int | None, reason: str = "") -> Reply:
    """A message after which `cumulative` tokens have come, None = it does not say; with `reason`, the last one."""
    reply = Reply()
    reply.infer_response.id = asked.id
    usage = {"prompt_tokens": 7, "cached_tokens": 3, "output_tokens": cumulative}
    told = json.dumps(usage) if cumulative is not None else ""
    for name, text in (("text_output", "x"), ("finish_reason", reason), ("usage", told)):
        output = reply.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1])
        assert output.name == name
        raw = text.encode()
        reply.infer_response.raw_output_contents.append(len(raw).to_bytes(4, "little") + raw)
    reply.infer_response.parameters["triton_final_response"].bool_param = False
    return reply


def final(asked: Asked) -> Reply:
    """The empty message that ends an answer."""
    reply = Reply()
    reply.infer_response.id = asked.id
    reply.infer_response.parameters["triton_final_response"].bool_param = True
    return reply


def refusal(message: str) -> Reply:
    return Reply(error_message=message)


def at_once(asked: Asked) -> Iterator[Reply]:
    """All tokens asked for, one a message, without delay."""
    count = asked.sampling["max_tokens"]
    for number in range(1, count + 1):
        yield tokens(asked, number, "length" if number == count else "")
    yield final(asked)


@contextmanager
def fake_triton(answer: Answer = at_once, model: str = "chat") -> Iterator[str]:
    """Serve `model` with `answer` on a free port; yields HOST:PORT."""

    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ServerLive(self, request: Any, context: Any) -> Any:
            return pb.ServerLiveResponse(live=True)

        def ModelReady(self, request: Any, context: Any) -> Any:
            return pb.ModelReadyResponse(ready=request.name == model)

        def RepositoryIndex(self, request: Any, context: Any) -> Any:
            index = pb.RepositoryIndexResponse()
            index.models.add(name=model, state="READY")
            return index

        def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Reply]:
            for raw in requests:
                yield from answer(Asked(raw, lambda: not context.is_active()))

    server = grpc.server(futures.ThreadPoolExecutor(64))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
