"""The edge to Triton: the only file that knows pb_utils. Tensors in, tensors out, metrics, one house-keeping thread.

Must not know scheduling or how tokens are made. What a request means is decode.protocol's, how it ends
decode.frontend's.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from decode.config import TierConfig
from decode.frontend import Answer, Client, Fault, Frontend
from decode.options import ServiceOptions
from decode.protocol import RawRequest, logprobs_json, usage_json
from decode.service import Service
from decode.stream import Output
from decode.supervision import OPTIONS, Link, Report
from decode.text import too_long
from decode.types import FinishReason, InvalidRequest
from observe import metrics

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


class Publisher:
    """Sets the declared metrics; used by the house-keeping thread only, except `observe`."""

    def __init__(self, model: str, tiers: Sequence[TierConfig]) -> None:
        self._model = model
        self._edges: dict[tuple[str, ...], tuple[float, ...]] = {
            (metric.name, tier.name): metrics.edges(metric, getattr(tier, target))
            for target, metric in metrics.PROMISED.items()
            for tier in tiers
        }
        kinds = {
            "counter": pb_utils.MetricFamily.COUNTER,
            "gauge": pb_utils.MetricFamily.GAUGE,
            "histogram": pb_utils.MetricFamily.HISTOGRAM,
        }
        self._families = {
            m.name: pb_utils.MetricFamily(name=m.name, description=m.help, kind=kinds[m.kind]) for m in metrics.METRICS
        }
        self._series: dict[tuple[str, ...], Any] = {}
        self._counts: dict[tuple[str, ...], float] = {}
        self._ended: queue.SimpleQueue[tuple[str, Output]] = queue.SimpleQueue()
        self._failure = ""  # told last
        for tier in tiers:
            for metric, reason in metrics.FROM_ZERO:
                self._of(metric, tier.name, reason)

    def observe(self, tier: str, output: Output) -> None:
        """Remember how a request ended; any thread. What a failed step said also goes to the server's log, once."""
        if output.finish_reason is FinishReason.ERROR and output.message != self._failure:
            self._failure = output.message
            print(f"{self._model}: {output.message}", file=sys.stderr, flush=True)
        self._ended.put((tier, output))

    def publish(self, service: Service, healthy: bool) -> int:
        """Bring every metric up to date; the number of steps since the last time."""
        stats = service.stats()
        self._of(metrics.HEALTHY).set(float(healthy))
        self._of(metrics.RUNNING).set(float(stats.running))
        for tier, count in stats.waiting.items():
            self._of(metrics.WAITING, tier).set(float(count))
        self._of(metrics.PAGES_USED).set(float(stats.pages_used))
        self._of(metrics.PAGES_CACHED).set(float(stats.pages_cached))
        self._of(metrics.PAGES_TOTAL).set(float(stats.pages_total))
        self._count(metrics.PREFIX_HITS, stats.prefix_hit_tokens)
        self._count(metrics.PROMPT_TOKENS, stats.prompt_tokens)
        self._count(metrics.OUTPUT_TOKENS, stats.output_tokens)
        steps = self._count(metrics.STEPS, stats.steps)
        self._count(metrics.PREEMPTIONS, stats.preemptions)
        self._count(metrics.SWAPS, stats.swaps)
        for tier, amount in stats.service.items():
            self._count(metrics.SERVICE, amount, tier)
        while not self._ended.empty():
            tier, output = self._ended.get()
            # A client may name any tier: what does not exist must not make series without end.
            self._request_ended(tier if tier in stats.service else "", output)
        return int(steps)

    def _request_ended(self, tier: str, output: Output) -> None:
        if output.reject is not None:
            self._of(metrics.REJECTS, tier, output.reject).increment(1)
            return
        self._of(metrics.FINISHED, tier, str(output.finish_reason)).increment(1)
        for metric, value in ((metrics.QUEUE, output.queue), (metrics.TTFT, output.ttft), (metrics.E2E, output.e2e)):
            if value is not None:
                self._of(metric, tier).observe(value / 1e9)
        for gap in output.itl:
            self._of(metrics.ITL, tier).observe(gap / 1e9)

    def _count(self, metric: metrics.Metric, total: float, *values: str) -> float:
        key = (metric.name, *values)
        more = total - self._counts.get(key, 0)
        self._of(metric, *values).increment(float(more))
        self._counts[key] = total
        return more

    def _of(self, metric: metrics.Metric, *values: str) -> Any:
        key = (metric.name, *values)
        series = self._series.get(key)
        if series is None:
            labels = {"model": self._model, **dict(zip(metric.labels, values, strict=True))}
            more = {"buckets": list(self._edges.get(key, metric.buckets))} if metric.kind == "histogram" else {}
            series = self._series[key] = self._families[metric.name].Metric(labels=labels, **more)
        return series


class ChatModel:
    """A service behind Triton. `execute` returns at once; answers leave on the service's sender thread."""

    def __init__(self, name: str, service: Service, default_tier: str) -> None:
        self._name = name
        self._service = service
        self._metrics = Publisher(name, service.tiers)
        self._frontend = Frontend(service, default_tier, self._metrics.observe)
        self._stop = threading.Event()
        self._broken_since: float | None = None
        self._metrics.publish(service, True)
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
        self._metrics.publish(self._service, False)
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
                steps = self._metrics.publish(self._service, self._frontend.failure is None)
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
