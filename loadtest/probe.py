"""Before a run: does the server have every model of it, and does each take a request of every tier?

Must not know schedules or targets.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from loadtest.connection import Connection
from loadtest.samples import Planned, Sample
from loadtest.unary import Inputs, inputs_of, takes_text

CONNECT_SECONDS = 5.0
PROBE_SECONDS = 120.0  # one answer, perhaps behind a queue


class Unusable(ValueError):
    """The server cannot be loaded as asked; one line that says what to change."""

    exit_status = 2


def check(url: str, requests: Sequence[Planned]) -> dict[str, Inputs]:
    """How the requests become inputs, for each of their models that answers in one piece.

    Raises Unusable unless the server answers, has all models, and each takes a request of every tier.
    """
    first: dict[tuple[str, str], Planned] = {}
    for request in requests:
        first.setdefault((request.model, request.tier), request)
    client = triton.InferenceServerClient(url)
    try:
        found = _inputs(client, url, list(first.values()))
    except InferenceServerException as error:
        why = " ".join(str(error.message()).split())
        raise Unusable(f"no server answers on {url} ({why}); start `gapless serve` or give --url HOST:PORT") from None
    finally:
        client.close()
    connection = Connection(url, found, lambda: 0)
    try:
        for request in first.values():
            _probe(connection, url, request)
    finally:
        connection.close()
    return found


def _inputs(client: triton.InferenceServerClient, url: str, requests: Sequence[Planned]) -> dict[str, Inputs]:
    client.is_server_live(client_timeout=CONNECT_SECONDS)
    found: dict[str, Inputs] = {}
    for request in requests:
        if not client.is_model_ready(request.model, client_timeout=CONNECT_SECONDS):
            index = client.get_model_repository_index(client_timeout=CONNECT_SECONDS)
            ready = [entry.name for entry in index.models if entry.state == "READY"] or ["none"]
            raise Unusable(f"model '{request.model}' is not ready on {url}; ready there: {', '.join(ready)}")
        if not request.max_tokens:
            metadata = client.get_model_metadata(request.model, client_timeout=CONNECT_SECONDS)
            _check_length(request, takes_text(metadata))
            if request.model not in found:
                found[request.model] = inputs_of(metadata)
    return found


def _check_length(request: Planned, takes_text: bool) -> None:
    if takes_text and request.item is not None:
        told = "is missing; the served model takes texts"
    elif not takes_text and request.item is None:
        told = "is given, and the served model takes no text; leave it out"
    else:
        return
    raise Unusable(f"models.{request.model}.traffic.{request.tier}.length: {told}")


def _probe(connection: Connection, url: str, planned: Planned) -> None:
    """Send a short request of the same kind."""
    few = min(1, planned.max_tokens)
    request = replace(planned, id=f"probe-{planned.tier}", text="Hello.", system="", ids=(), max_tokens=few)
    ended = queue.SimpleQueue[Sample]()
    connection.send(request, 0, ended.put)
    try:
        sample = ended.get(timeout=PROBE_SECONDS)
    except queue.Empty:
        connection.abandon("no answer in time")
        sample = ended.get()
    if sample.outcome != "ok":
        told = f"model '{planned.model}' on {url} does not serve tier '{planned.tier}': {sample.error}"
        raise Unusable(f"{told}; run gapless generate, and serve anew" if planned.max_tokens else told)
