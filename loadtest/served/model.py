"""Idle models for measuring the load generator: a vector for a text, at once, or tokens at a fixed pace.

With the parameter `interval`, in seconds, it streams as an LLM does, and one thread keeps the pace of all its streams.
Must not know who asks.
"""

from __future__ import annotations

import heapq
import itertools
import json
import threading
import time
from typing import Any, Protocol

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
VECTOR = np.zeros((1, 384), dtype=np.float32)


class Sender(Protocol):
    """Triton's response sender of one request."""

    def send(self, response: object, flags: int) -> None: ...


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        told = json.loads(args["model_config"]).get("parameters", {}).get("interval")
        self.pacer = Pacer(float(told["string_value"])) if told else None

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if self.pacer is None:
            return [pb_utils.InferenceResponse([pb_utils.Tensor("vector", VECTOR)]) for _ in requests]
        for request in requests:
            sampling = pb_utils.get_input_tensor_by_name(request, "sampling_parameters").as_numpy()[0]
            self.pacer.add(request.get_response_sender(), json.loads(sampling)["max_tokens"])
        return None

    def finalize(self) -> None:
        if self.pacer is not None:
            self.pacer.close()


class Pacer:
    """Sends a token of each open stream every `interval` seconds, the first of them at once."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due: list[tuple[float, int, Sender, int, int]] = []  # when, number, sender, tokens sent, tokens asked for
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._keep_pace, daemon=True)
        self._thread.start()

    def add(self, sender: Sender, tokens: int) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic(), next(self._numbers), sender, 0, tokens))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _keep_pace(self) -> None:
        while (stream := self._next()) is not None:
            due, number, sender, sent, asked = stream
            last = sent + 1 >= asked
            sender.send(pb_utils.InferenceResponse(_message(sent + 1, last)), flags=FINAL if last else 0)
            if not last:
                with self._changed:
                    heapq.heappush(self._due, (due + self._interval, number, sender, sent + 1, asked))

    def _next(self) -> tuple[float, int, Sender, int, int] | None:
        """The stream whose token is due, when it is; None at the end."""
        with self._changed:
            while not self._ended:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)
                self._changed.wait(wait)
        return None


def _message(tokens: int, last: bool) -> list[Any]:
    """What the decode loop sends with each token; with the last, the reason and what was used."""
    usage = {"prompt_tokens": 1, "cached_tokens": 0, "output_tokens": tokens}
    more = {"finish_reason": "length", "usage": json.dumps(usage)} if last else {}
    told = {"text_output": " token", **more}
    return [pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_)) for name, text in told.items()]
