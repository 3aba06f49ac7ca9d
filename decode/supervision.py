"""The line between a served model and the launcher that keeps it alive; both ends' words are declared here.

A model that finds SUPERVISOR in its environment connects to that abstract Unix socket and sends one JSON object a
line: what it is, how many requests are open, why it is broken. The end of the line is how the launcher learns, at once,
that the process died. The launcher sends `drain SECONDS`. Without a launcher nothing of this happens. Must not know
Triton or the engine.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

SUPERVISOR = "GAPLESS_SUPERVISOR"  # name of the launcher's socket
OPTIONS = "GAPLESS_OPTIONS"  # JSON object of options that override a model's parameters


@dataclass(frozen=True, slots=True)
class Report:
    """What a model says of itself. `leaving` comes before an orderly end, so that it is not taken for a death.

    `whole`: it answers each request in one piece, through Triton's own queue, and has computed before it was loaded.
    How many are open only Triton knows, which drains them when the server ends.
    """

    model: str
    pid: int
    open: int = 0
    failure: str | None = None
    drained: bool = False  # takes no more requests and has none open
    leaving: bool = False
    whole: bool = False

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Report:
        """Raises ValueError or TypeError when `line` is no report."""
        return cls(**json.loads(line))


class Link:
    """A model's end of the line. Reports may come from any thread; `on_drain(seconds)` has a thread of its own.

    When the launcher goes away this process ends too: the server it belongs to is going down with it.
    """

    def __init__(self, name: str, on_drain: Callable[[float], None]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect("\0" + name)
        self._lock = threading.Lock()
        self._on_drain = on_drain
        threading.Thread(target=self._listen, name="gapless-link", daemon=True).start()

    @classmethod
    def from_environment(cls, on_drain: Callable[[float], None]) -> Link | None:
        name = os.environ.get(SUPERVISOR)
        return cls(name, on_drain) if name else None

    def send(self, report: Report) -> None:
        """A launcher that is gone is dealt with by the listening thread."""
        with self._lock:
            try:
                self._socket.sendall(report.line())
            except OSError:
                return

    def close(self) -> None:
        self._on_drain = _nothing
        self._socket.close()

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                word, _, seconds = line.decode().strip().partition(" ")
                if word == "drain":
                    self._on_drain(float(seconds))
        if self._on_drain is not _nothing:
            os._exit(1)


def _nothing(seconds: float) -> None:
    """In place of a listener once the line is closed."""
