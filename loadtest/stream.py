"""Requests over tritonclient gRPC streaming: one request at a time per stream, timed at the moment a message arrives.

Streams are kept and used again, as a chat client would; one that failed is closed. An error on a stream carries no
request id, which is why a stream never holds two requests. Must not know schedules, targets or locust.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from loadtest.samples import Outcome, Planned, Sample

CONNECT_SECONDS = 5.0
PROBE_SECONDS = 120.0  # one token, perhaps behind a queue


class Unusable(ValueError):
    """The server cannot be loaded as asked; one line that says what to change."""

    exit_status = 2


class Stream:
    """One gRPC stream to one model. `clock` gives ns since the run began."""

    def __init__(self, url: str, model: str, clock: Callable[[], int]) -> None:
        self._model = model
        self._clock = clock
        self._client = triton.InferenceServerClient(url)
        self._client.start_stream(self._receive)
        self._answer: _Answer | None = None
        self.usable = True

    def send(self, request: Planned, intended: int) -> Sample:
        """Send, wait for the end of the answer and say how it went. Never raises for what the server does."""
        answer = self._answer = _Answer(self._clock())
        try:
            self._client.async_stream_infer(
                self._model,
                _inputs(request),
                request_id=request.id,
                enable_empty_final_response=True,
                parameters={"tier": request.tier},
            )
        except InferenceServerException as error:
            answer.fail(self._clock(), error)
        answer.ended.wait()
        self.usable = answer.outcome != "failed"
        return answer.sample(request, intended)

    def abandon(self, why: str) -> None:
        """End the request in flight as failed and drop the stream, which cancels it at the server."""
        if self._answer is not None and not self._answer.ended.is_set():
            self._answer.fail(self._clock(), InferenceServerException(why, status="abandoned"))
        self.close()

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def _receive(self, result: triton.InferResult | None, error: InferenceServerException | None) -> None:
        now = self._clock()
        if self._answer is None or self._answer.ended.is_set():
            return
        if error is not None:
            self._answer.fail(now, error)
        elif result is not None:
            self._answer.take(now, result)


class _Answer:
    """What has arrived of one answer so far."""

    def __init__(self, sent: int) -> None:
        self.ended = threading.Event()
        self.outcome: Outcome = "failed"
        self._sent = sent
        self._end: int | None = None
        self._messages: list[tuple[int, int]] = []
        self._tokens = 0
        self._usage: dict[str, int] = {}
        self._finish_reason = ""
        self._error = ""

    def take(self, now: int, result: triton.InferResult) -> None:
        """Tokens of a message: one, unless it carries `usage`, which tells how many have come in all.

        A server that tells usage only at the end, and put several tokens into an earlier message, has them counted to
        its last message. A message without text still holds a token: half a character.
        """
        response = result.get_response()
        texts = _texts(response)
        usage = texts.get("usage")
        self._finish_reason = texts.get("finish_reason") or self._finish_reason
        if usage:
            self._usage = json.loads(usage)
            tokens = self._usage["output_tokens"] - self._tokens
        else:
            tokens = 1 if "text_output" in texts else 0
        if tokens > 0:
            self._messages.append((now, tokens))
            self._tokens += tokens
        if self._finish_reason and self._end is None:
            self._end = now
        if "triton_final_response" in response.parameters and response.parameters["triton_final_response"].bool_param:
            self._finish(now)

    def _finish(self, now: int) -> None:
        """The empty final message only closes the answer; its time counts when no message told the reason."""
        self._end = self._end if self._end is not None else now
        good = self._finish_reason not in ("cancelled", "error") and self._tokens > 0
        self.outcome = "ok" if good else "failed"
        if not good:
            self._error = f"ended with finish_reason '{self._finish_reason}' after {self._tokens} tokens"
        self.ended.set()

    def fail(self, now: int, error: InferenceServerException) -> None:
        """An error of the model before any token is a refusal; one of the connection (it has a status), a failure."""
        self.outcome = "failed" if self._messages or error.status() else "rejected"
        self._end = now
        self._error = " ".join(str(error.message()).split())
        self.ended.set()

    def sample(self, request: Planned, intended: int) -> Sample:
        return Sample(
            id=request.id,
            tier=request.tier,
            intended=intended,
            sent=self._sent,
            first=self._messages[0][0] if self._messages else None,
            end=self._end,
            messages=tuple(self._messages),
            outcome=self.outcome,
            error=self._error,
            finish_reason=self._finish_reason,
            asked=request.max_tokens,
            prompt_tokens=self._usage.get("prompt_tokens", 0),
            cached_tokens=self._usage.get("cached_tokens", 0),
            output_tokens=self._tokens,
        )


def check(url: str, model: str, tiers: list[str]) -> None:
    """Raise Unusable unless the server answers, has the model, and the model takes a request of every tier."""
    client = triton.InferenceServerClient(url)
    try:
        client.is_server_live(client_timeout=CONNECT_SECONDS)
        if not client.is_model_ready(model, client_timeout=CONNECT_SECONDS):
            index = client.get_model_repository_index(client_timeout=CONNECT_SECONDS)
            ready = [entry.name for entry in index.models if entry.state == "READY"] or ["none"]
            raise Unusable(f"model '{model}' is not ready on {url}; ready there: {', '.join(ready)}")
    except InferenceServerException as error:
        why = " ".join(str(error.message()).split())
        raise Unusable(f"no server answers on {url} ({why}); start `gapless serve` or give --url HOST:PORT") from None
    finally:
        client.close()
    for tier in tiers:
        _probe(url, model, tier)


def _probe(url: str, model: str, tier: str) -> None:
    stream = Stream(url, model, lambda: 0)
    timer = threading.Timer(PROBE_SECONDS, stream.abandon, ["no answer in time"])
    timer.start()
    try:
        sample = stream.send(Planned(f"probe-{tier}", tier, 0, "", "Hello.", 1), 0)
    finally:
        timer.cancel()
        stream.close()
    if sample.outcome != "ok":
        raise Unusable(f"model '{model}' on {url} does not serve tier '{tier}': {sample.error}")


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
    system = [{"role": "system", "content": request.system}] if request.system else []
    return [_input("messages", json.dumps([*system, {"role": "user", "content": request.text}]).encode(), "BYTES")]


def _input(name: str, value: bytes | bool, datatype: str) -> triton.InferInput:
    tensor = triton.InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(np.array([value], dtype=bool if datatype == "BOOL" else object))
    return tensor


def _texts(response: service_pb2.ModelInferResponse) -> dict[str, str]:
    """The outputs of a message, each one string: four bytes of length, then the string, which is Triton's BYTES form.

    Read from the message itself: the client shares its cores with the server it measures, and the way through numpy
    arrays costs it several times as much for every token.
    """
    raw = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: data[4:].decode("utf-8", "replace") for output, data in raw if len(data) >= 4}
