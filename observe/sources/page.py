"""Pages in Prometheus' text format over HTTP: Triton's own with what its models add, and that of a DCGM exporter.

Triton: `nv_*` (names end in their unit: _us, _bytes, _joules, _watts; `nv_gpu_utilization` is a share of 1) and
`gapless_*` (see `observe.metrics`; times in seconds). DCGM: `DCGM_FI_PROF_*` are shares of 1, PCIe and NVLink bytes
a second; `DCGM_FI_DEV_*` as in its documentation: FB_* in MiB, POWER_USAGE in W, GPU_UTIL in percent, clocks in MHz.
Must not know what is done with the numbers.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from observe.series import PageError, page
from observe.sources.base import SourceError

LARGEST = 16 * 2**20  # bytes of a page
# A page is on this machine or near: what the environment says of proxies is for other things.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Page:
    """Series whose names start with one of `prefixes`. `timeout` in seconds."""

    name: str
    url: str
    prefixes: tuple[str, ...]
    timeout: float = 2.0

    def read(self) -> Mapping[str, float]:
        """Raises SourceError when it does not answer or answers something else."""
        try:
            text = _fetch(self.url, self.timeout)
            found = {str(series): value for series, value in page(text) if series.name.startswith(self.prefixes)}
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
    try:
        with _OPENER.open(url, timeout=timeout) as answer:
            text: bytes = answer.read(LARGEST + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an address with odd characters
        reason = getattr(error, "reason", None) or error
        told = " ".join(str(getattr(reason, "strerror", None) or reason).split()) or type(error).__name__
        raise SourceError(f"{url} does not answer: {told}") from None
    if len(text) > LARGEST:
        raise SourceError(f"{url} is longer than {LARGEST >> 20} MiB")
    return text.decode(errors="replace")
