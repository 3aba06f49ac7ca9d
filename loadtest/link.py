"""What the master of a distributed run and its workers say to each other, over the messages of locust's runners.

    worker -> master                           master -> worker
    hello {host, pid}                          refused {why}                   where all workers are there already
                                               job {…, count}
    fetch                                      piece {lines}                   until all requests are there
    failed {line} | ready                      ping {sent}                     some times
    pong {sent, here}                          begin {at}                      on the worker's monotonic clock
    progress {ended, in_flight, failed} …
    ended {count, wall, cpu, lags, send_lag}   fetch                           until all samples are there
    piece {lines}

What is large is asked for piece by piece: a ROUTER socket drops what its peer does not take, and heartbeats, which run
beside, must not wait. The link is neither authenticated nor encrypted. Must not know what is sent to the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gevent.queue import Empty, Queue
from locust import runners
from locust.rpc import Message
from locust.runners import DistributedRunner

TO_MASTER = ("hello", "fetch", "failed", "ready", "pong", "progress", "ended", "piece")
TO_WORKER = ("refused", "job", "piece", "ping", "begin", "fetch")
PIECE = 1 << 20  # bytes of lines, at about which one is cut
SILENT = 15  # s without a heartbeat after which the other end counts as gone; locust sends one a second

runners.HEARTBEAT_LIVENESS = SILENT // runners.HEARTBEAT_INTERVAL
runners.MASTER_HEARTBEAT_TIMEOUT = SILENT


class Inbox:
    """Messages in the order in which they came, for the main greenlet: what a listener raises locust only logs."""

    def __init__(self, runner: DistributedRunner, kinds: Iterable[str]) -> None:
        self._messages: Queue[Message] = Queue()
        for kind in kinds:
            runner.register_message(kind, self._put)

    def take(self, seconds: float) -> Message | None:
        """The next one; None where none comes in time."""
        try:
            message: Message = self._messages.get(timeout=seconds)
        except Empty:
            return None
        return message

    def _put(self, environment: object, msg: Message, **_: object) -> None:
        self._messages.put(msg)


def pieces(lines: Iterable[str]) -> Iterator[bytes]:
    """The same lines, some of them together."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line.encode() + b"\n")
        size += len(held[-1])
        if size >= PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def lines(piece: bytes) -> list[bytes]:
    """The lines of a piece."""
    return piece.split(b"\n")[:-1]
