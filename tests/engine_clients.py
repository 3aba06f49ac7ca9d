"""What clients of engines ask a real server, and what it says of itself."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from serving import Serving
from tritonclient.utils import np_to_triton_dtype


def infer(serving: Serving, model: str, timeout: float | None = 30, **arrays: Any) -> dict[str, NDArray[Any]]:
    """Every output by name. Raises InferenceServerException with the server's words."""
    with grpcclient.InferenceServerClient(f"127.0.0.1:{serving.facts['grpc_port']}") as client:
        return ask(client, model, timeout, **arrays)


def ask(
    client: grpcclient.InferenceServerClient, model: str, timeout: float | None = 30, **arrays: Any
) -> dict[str, NDArray[Any]]:
    """The same on a connection that is there."""
    result = client.infer(model, tensors(arrays), client_timeout=timeout)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def tensors(arrays: dict[str, Any]) -> list[grpcclient.InferInput]:
    made = []
    for name, array in arrays.items():
        made.append(grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made


def texts(*items: str | bytes) -> NDArray[Any]:
    """[n, 1] BYTES, for `text` and for `image`."""
    return np.array([[item.encode() if isinstance(item, str) else item] for item in items], np.object_)


def get(serving: Serving, path: str) -> dict[str, Any]:
    """JSON from the server's HTTP side."""
    connection = http.client.HTTPConnection("127.0.0.1", serving.facts["http_port"], timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        assert response.status == 200, body
        return json.loads(body)
    finally:
        connection.close()


def counts(serving: Serving, model: str) -> tuple[int, int]:
    """Items computed and executions that it took, by the server's statistics."""
    [stats] = get(serving, f"/v2/models/{model}/stats")["model_stats"]
    return stats["inference_count"], stats["execution_count"]


def stub_of(serving: Serving, model: str) -> int:
    """The pid of the living stub of one model."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            arguments = Path(f"/proc/{entry}/cmdline").read_text()
        except OSError:
            continue
        if parent == str(serving.facts["server_pid"]) and state != "Z" and f"/{model}/1/model.py" in arguments:
            return int(entry)
    raise AssertionError(f"no stub of {model}")
