"""The edge to Triton: tensors in, tensors out, one house-keeping thread.

Must not know scheduling or how tokens are made. What a request means is decode.protocol's, how it ends
decode.frontend's.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from decode.frontend import Answer, Client, Fault, Frontend
from decode.options import ServiceOptions
from decode.protocol import RawRequest, logprobs_json, usage_json
from decode.service import Service
from decode.supervision import OPTIONS, Link, Report
from decode.text import too_long
from decode.triton_metrics import Publisher
from decode.types import InvalidRequest

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CODES = {
    Fault.INVALID: pb_utils.TritonError.INVALID_ARG,
    Fault.UNAVAILABLE: pb_utils.TritonError.UNAVAILABLE,
    Fault.CANCELLED: pb_utils.TritonError.CANCELLED,
    Fault.INTERNAL: pb_utils.TritonError.INTERNAL,
}
SOON = 0.02  # seconds
REPORT_EVERY = 0.5  # seconds between heartbeats and between updates of gauges
GRACE = 1.0  # seconds a broken service gets to end its requests itself


def options_from(args: Mapping[str, str]) -> ServiceOptions:
    """The parameters of config.pbtxt, overridden by the launcher's options. Raises ConfigError.

    `cuda` is the card of the instance: Triton gives each instance of a group one of the group's cards.
    """
    config = json.loads(args["model_config"])
    parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
    options = ServiceOptions.from_parameters(parameters | json.loads(os.environ.get(OPTIONS) or "{}"))
    if options.device == "cuda" and args["model_instance_kind"] == "GPU":
        return replace(options, device=f"cuda:{args['model_instance_device_id']}")
    return options


def read_request(request: Any, most: int) -> RawRequest:
    """Inputs of a Triton request as plain values; a tensor without elements counts as absent.

    Raises InvalidRequest when `input_ids` has over `most` elements, UnicodeDecodeError on text that is not UTF-8.
    """
    found: dict[str, Any] = {}
    for tensor in request.inputs():
        values = tensor.as_numpy().reshape(-1)
        if tensor.name() == "input_ids":
            if values.size > most:
                raise too_long(values.size, most)
            found["input_ids"] = tuple(values.tolist())
        elif values.size:
            found[tensor.name()] = values[0]
    for name in ("stream", "exclude_input_in_output"):
        if name in found:
            found[name] = bool(found[name])
    return RawRequest(**found, parameters=request.parameters() or "{}")


class TritonClient(Client):
    """Answers one Triton request through its response sender."""

    def __init__(self, request: Any, service: Service) -> None:
        self._sender = request.get_response_sender()
        self._wanted = frozenset(request.requested_output_names())
        self._service = service

    def answer(self, answer: Answer) -> None:
        tensors = [_string("text_output", answer.text)]
        if answer.reason is not None and "finish_reason" in self._wanted:
            tensors.append(_string("finish_reason", answer.reason))
        if answer.usage is not None and "usage" in self._wanted:
            tensors.append(_string("usage", usage_json(answer.usage)))
        if answer.logprobs and "logprobs" in self._wanted:
            text = logprobs_json(answer.tokens, answer.logprobs, lambda token: self._service.tokenizer.decode((token,)))
            tensors.append(_string("logprobs", text))
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if answer.reason is not None else 0)

    def fail(self, fault: Fault, message: str) -> None:
        error = pb_utils.TritonError(message.encode("utf-8", "replace").decode(), CODES[fault])
        self._sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def _string(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))


class ChatModel:
    """A service behind Triton. `execute` returns at once; answers leave on the service's sender thread."""

    def __init__(self, name: str, service: Service, options: ServiceOptions) -> None:
        self._name = name
        self._service = service
        self._metrics = Publisher(name, service, options)
        self._frontend = Frontend(service, options.tier, self._metrics.observe)
        self._stop = threading.Event()
        self._broken_since: float | None = None
        self._metrics.publish(True)
        self._drained = False
        self._reported = 0  # open requests, as the launcher knows it
        self._link = Link.from_environment(self._drain)
        self._report()
        self._keeper = threading.Thread(target=self._keep_house, name="gapless-house", daemon=True)
        self._keeper.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            if self._frontend.open == 0:
                self._report(opening=1)  # before anything can go wrong: the launcher must know whom a death would hit
            client = TritonClient(request, self._service)
            try:
                name, raw = request.request_id(), read_request(request, self._service.most_prompt)
            except InvalidRequest as error:
                self._frontend.refuse(client, str(error))
            except UnicodeDecodeError as error:
                self._frontend.refuse(
                    client, f"the request's id or a parameter is not valid UTF-8 at byte {error.start}"
                )
            else:
                self._frontend.take(name, raw, client)

    def is_ready(self) -> bool:
        """For Triton versions that ask."""
        return self._frontend.failure is None

    def close(self, drain_timeout: float = 0.0) -> None:
        """Stop everything; requests still open end with an error."""
        self._report(leaving=True)
        self._stop.set()
        self._keeper.join()
        self._frontend.drain(drain_timeout)
        self._metrics.publish(False)
        if self._link is not None:
            self._link.close()

    def _report(self, opening: int = 0, leaving: bool = False) -> None:
        if self._link is not None:
            front = self._frontend
            self._reported = front.open + opening
            self._link.send(Report(self._name, os.getpid(), self._reported, front.failure, self._drained, leaving))

    def _drain(self, seconds: float) -> None:
        self._frontend.drain(seconds)
        self._drained = True
        self._report()

    def _keep_house(self) -> None:
        """Find clients that left, keep metrics and the launcher informed, end what a broken service left open."""
        due, pause, step = 0.0, SOON, 0.0
        while not self._stop.wait(pause):
            began = time.monotonic()
            asked = self._frontend.cancel_left()
            # Asking costs three processes about 0.1 ms each time: once a step, so that nobody who left is computed for
            # in more than the step under way and the one after it, and never more than a tenth of one core.
            took = time.monotonic() - began
            pause = min(0.25, max(SOON, step - took, 10 * took)) if asked else 2 * SOON
            if began >= due:
                due = began + REPORT_EVERY
                steps = self._metrics.publish(self._frontend.failure is None)
                step = REPORT_EVERY / steps if steps else step
                self._report()
            elif self._reported and not self._frontend.open:
                self._report()  # nobody is left whom a death would hit
            self._watch(began)

    def _watch(self, now: float) -> None:
        failure = self._frontend.failure
        if failure is None:
            self._broken_since = None
        elif self._broken_since is None:
            self._broken_since = now
            self._report()
        elif now - self._broken_since > GRACE and self._frontend.open:
            self._frontend.fail_all(failure)
