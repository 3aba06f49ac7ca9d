"""Pages in Prometheus' text format over HTTP: Triton's own with what its models add, and that of a DCGM exporter.

Triton: `nv_*` (names end in their unit: _us, _bytes, _joules, _watts; `nv_gpu_utilization` is a share of 1) and
`gapless_*` (see `observe.metrics`; times in seconds). DCGM: `DCGM_FI_PROF_*` are shares of 1, PCIe and NVLink bytes
a second; `DCGM_FI_DEV_*` as in its documentation: FB_* in MiB, POWER_USAGE in W, GPU_UTIL in percent, clocks in MHz.
Must not know what is done with the numbers.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from observe.series import PageError, page
from observe.sources.base import SourceError

LARGEST = 16 * 2**20  # bytes of a page


@dataclass(frozen=True, slots=True)
class Page:
    """Series whose names start with one of `prefixes`, without those that are not `plain`. `timeout`: s of a read."""

    name: str
    url: str
    prefixes: tuple[str, ...]
    timeout: float = 2.0

    def read(self) -> Mapping[str, float]:
        """Raises SourceError when it does not answer or answers something else."""
        try:
            text = _fetch(self.url, self.timeout)
            mine = ((one, value) for one, value in page(text) if one.name.startswith(self.prefixes))
            found = {str(series): value for series, value in mine if series.plain}
        except PageError as error:
            raise SourceError(f"{self.url} {error}") from None
        if not found:
            raise SourceError(f"{self.url} has no metrics named {' or '.join(f'{it}…' for it in self.prefixes)}")
        return found

    def close(self) -> None:
        """Nothing is held open: each read has its own connection."""


def triton(url: str) -> Page:
    """The metrics page of a tritonserver."""
    return Page("Triton", url, ("nv_", "gapless_"))


def dcgm(url: str) -> Page:
    """The metrics page of a dcgm-exporter."""
    return Page("DCGM", url, ("DCGM_FI_",))


def wrong_url(url: str) -> str | None:
    """Why this cannot be the address of a page, or None."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    return None if fine else f"{url[:100]!r} is not an address; as http://127.0.0.1:8002/metrics"


def _fetch(url: str, timeout: float) -> str:
    """The page, within `timeout` in all. Proxies are for other things: a page is on this machine or near."""
    deadline, late = time.monotonic() + timeout, threading.Event()
    try:
        with closing(_connection(url, timeout)) as connection:
            connection.connect()
            with _cut_off(connection.sock, deadline, late):
                parts = urlsplit(url)
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request("GET", path, headers={"Connection": "close"})
                answer = connection.getresponse()
                text = answer.read(LARGEST + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an address with odd characters
        told = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
        raise SourceError(f"{url} does not answer: {'timed out' if late.is_set() else told}") from None
    if late.is_set():  # what has no length looks whole where it was cut off
        raise SourceError(f"{url} does not answer: timed out")
    if answer.status != http.client.OK:
        raise SourceError(f"{url} does not answer: {answer.reason or answer.status}")
    if len(text) > LARGEST:
        raise SourceError(f"{url} is longer than {LARGEST >> 20} MiB")
    return text.decode(errors="replace")


def _connection(url: str, timeout: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout)


@contextmanager
def _cut_off(connected: socket.socket, deadline: float, late: threading.Event) -> Iterator[None]:
    """End all reads at the deadline, also of headers: a socket's own timeout begins anew with each byte."""

    def cut() -> None:
        late.set()
        with suppress(OSError):  # it is closed already
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
