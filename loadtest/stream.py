"""Requests over tritonclient's asyncio gRPC streaming: one stream a request, timed at the moment a message arrives.

All streams share a connection and an event loop on a thread of its own: what a client costs for each message is taken
from the cores it shares with the server it measures. An error on a stream carries no request id, which is why a stream
never holds two requests. Must not know schedules, targets or locust.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from loadtest.samples import Outcome, Planned, Sample

CONNECT_SECONDS = 5.0
PROBE_SECONDS = 120.0  # one token, perhaps behind a queue
LAG_PERIOD = 10_000_000  # ns between looks at the event loop

OnEnd = Callable[[Sample], None]


class Unusable(ValueError):
    """The server cannot be loaded as asked; one line that says what to change."""

    exit_status = 2


class Streams:
    """Streams to one model. `clock` gives ns since the run began; `lags` says how late the event loop was, in ns."""

    def __init__(self, url: str, model: str, clock: Callable[[], int]) -> None:
        self.lags: list[int] = []
        self._model = model
        self._clock = clock
        self._open: dict[asyncio.Task[None], tuple[_Answer, Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streams", daemon=True)
        self._thread.start()
        self._client = self._call(self._connect(url))

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def send(self, request: Planned, intended: int, on_end: OnEnd) -> None:
        """Send now. `on_end` gets the sample on the thread of the streams, whatever the server does."""
        self._loop.call_soon_threadsafe(self._start, request, intended, on_end)

    def watch_lag(self) -> None:
        """From now on note how late the loop is for each tick of a grid: what it may add to any time measured here.

        A long stall is late for every tick in it; one late wake-up alone would vanish below the 99th percentile.
        """
        self._loop.call_soon_threadsafe(self._tick, self._clock() + LAG_PERIOD)

    def abandon(self, why: str) -> None:
        """End whatever is in flight as failed; the server sees it cancelled."""
        self._loop.call_soon_threadsafe(self._abandon, why)

    def close(self) -> None:
        """End everything, the connection too."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self, url: str) -> triton_aio.InferenceServerClient:
        return triton_aio.InferenceServerClient(url)

    async def _close(self) -> None:
        self._abandon("closed")
        if self._open:
            await asyncio.wait(list(self._open))
        await self._client.close()

    def _tick(self, due: int) -> None:
        woken = self._clock()
        while due <= woken:
            self.lags.append(woken - due)
            due += LAG_PERIOD
        self._loop.call_later(max(0, due - self._clock()) / 1e9, self._tick, due)

    def _abandon(self, why: str) -> None:
        for answer, responses in self._open.values():
            answer.fail(self._clock(), InferenceServerException(why, status="abandoned"))
            responses.cancel()

    def _start(self, request: Planned, intended: int, on_end: OnEnd) -> None:
        answer = _Answer(self._clock())
        responses = self._client.stream_infer(_once(self._model, request))
        task = self._loop.create_task(self._receive(answer, responses))
        self._open[task] = answer, responses
        task.add_done_callback(lambda _: self._end(task, answer, request, intended, on_end))

    def _end(self, task: asyncio.Task[None], answer: _Answer, request: Planned, intended: int, on_end: OnEnd) -> None:
        del self._open[task]
        if not task.cancelled() and (defect := task.exception()) is not None:
            answer.fail(self._clock(), InferenceServerException(repr(defect), status="client"))
        on_end(answer.sample(request, intended))

    async def _receive(self, answer: _Answer, responses: Any) -> None:
        """Take messages until the server ends the stream, or the answer is at its end."""
        try:
            async for result, error in responses:
                if error is not None:
                    answer.fail(self._clock(), error)
                    responses.cancel()
                    return
                answer.take(self._clock(), result.get_response())
            answer.finish(self._clock())
        except grpc.RpcError as error:
            answer.fail(self._clock(), InferenceServerException(error.details(), status=str(error.code())))


async def _once(model: str, request: Planned) -> AsyncIterator[dict[str, Any]]:
    """The only request of a stream; the server ends the stream after its answer."""
    yield {
        "model_name": model,
        "inputs": _inputs(request),
        "request_id": request.id,
        "parameters": {"tier": request.tier},
    }


class _Answer:
    """What has arrived of one answer so far."""

    def __init__(self, sent: int) -> None:
        self.outcome: Outcome | None = None  # None: it goes on
        self._sent = sent
        self._end: int | None = None
        self._messages: list[tuple[int, int]] = []
        self._tokens = 0
        self._usage: dict[str, int] = {}
        self._finish_reason = ""
        self._error = ""

    def take(self, now: int, response: service_pb2.ModelInferResponse) -> None:
        """Tokens of a message: one, unless it carries `usage`, which tells how many have come in all.

        A server that tells usage only at the end, and put several tokens into an earlier message, has them counted to
        its last message. A message without text still holds a token: half a character.
        """
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

    def finish(self, now: int) -> None:
        """The stream is at its end; that time counts when no message told the reason."""
        if self.outcome is not None:
            return
        self._end = self._end if self._end is not None else now
        good = self._finish_reason not in ("cancelled", "error") and self._tokens > 0
        self.outcome = "ok" if good else "failed"
        if not good:
            self._error = f"ended with finish_reason '{self._finish_reason}' after {self._tokens} tokens"

    def fail(self, now: int, error: InferenceServerException) -> None:
        """An error of the model before any token is a refusal; one of the connection (it has a status), a failure.

        The first end counts.
        """
        if self.outcome is not None:
            return
        self.outcome = "failed" if self._messages or error.status() else "rejected"
        self._end = now
        self._error = " ".join(str(error.message()).split())

    def sample(self, request: Planned, intended: int) -> Sample:
        return Sample(
            id=request.id,
            tier=request.tier,
            intended=intended,
            sent=self._sent,
            first=self._messages[0][0] if self._messages else None,
            end=self._end,
            messages=tuple(self._messages),
            outcome=self.outcome or "failed",
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
    streams, ended = Streams(url, model, lambda: 0), queue.SimpleQueue[Sample]()
    try:
        streams.send(Planned(f"probe-{tier}", tier, 0, "", "Hello.", 1), 0, ended.put)
        try:
            sample = ended.get(timeout=PROBE_SECONDS)
        except queue.Empty:
            streams.abandon("no answer in time")
            sample = ended.get()
    finally:
        streams.close()
    if sample.outcome != "ok":
        raise Unusable(f"model '{model}' on {url} does not serve tier '{tier}': {sample.error}; serve with --sla FILE")


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


def _texts(response: service_pb2.ModelInferResponse) -> dict[str, str]:
    """The outputs of a message, each one string: four bytes of length, then the string, which is Triton's BYTES form.

    Read from the message itself: the client shares its cores with the server it measures, and the way through numpy
    arrays costs it several times as much for every token.
    """
    raw = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: data[4:].decode("utf-8", "replace") for output, data in raw if len(data) >= 4}
