"""The few HTTP calls a launcher makes to its own tritonserver. Standard library only; blocking, with timeouts.

Must not know processes.
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any


class TritonError(RuntimeError):
    """The server said no; the message is its own, in one line."""


class TritonHTTP:
    """One server, by address."""

    def __init__(self, host: str, port: int) -> None:
        self.host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.port = port

    def ready(self) -> bool:
        """Whether the server listens and every model it was started with is loaded."""
        try:
            self._call("GET", "/v2/health/ready", None, 2)
        except (OSError, TritonError, http.client.HTTPException):
            return False
        return True

    def reload(self, model: str, timeout: float) -> None:
        """Unload and load. Raises TritonError with the reason, or OSError.

        A load alone does nothing while the model's files are unchanged, dead stub or not.
        """
        self._call("POST", f"/v2/repository/models/{model}/unload", {}, timeout)
        self._call("POST", f"/v2/repository/models/{model}/load", {}, timeout)

    def models(self) -> list[str]:
        """Names of models that are loaded."""
        index = self._call("POST", "/v2/repository/index", {"ready": True}, 5)
        return sorted({entry["name"] for entry in index})

    def generate(self, model: str, timeout: float) -> str:
        """One greedy token. Raises TritonError or OSError."""
        body = {"text_input": "Hello", "max_tokens": 1, "temperature": 0, "exclude_input_in_output": True}
        answer = self._call("POST", f"/v2/models/{model}/generate", body, timeout)
        if "text_output" not in answer:
            raise TritonError(str(answer.get("error", answer)))
        return str(answer["text_output"])

    def _call(self, method: str, path: str, body: Any, timeout: float) -> Any:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        finally:
            connection.close()
        try:
            answer = json.loads(text) if text.strip() else {}
        except ValueError:
            raise TritonError(one_line(text)) from None
        if response.status != 200:
            reason = answer.get("error", f"HTTP {response.status}") if isinstance(answer, dict) else text
            raise TritonError(one_line(str(reason)))
        return answer


def one_line(text: str) -> str:
    """A reason without the Python traceback that Triton appends."""
    text = text.replace("\\n", "\n").partition("\n\nAt:")[0]
    return " ".join(text.split())


def pick_port(host: str) -> int:
    """A port that is free now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
