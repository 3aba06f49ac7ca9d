"""Samples taken beside something else, in a thread of their own, for as long as a block lasts.

Must not know what is measured meanwhile, nor what is done with the samples.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from observe import window
from observe.ring import Ring
from observe.sampler import Sampler
from observe.sources.base import Source
from observe.window import Window


def ticks(interval: int, duration: int | None, ended: threading.Event) -> Iterator[int]:
    """Moments in ns since the epoch, `interval` apart; missed ones are left out, setting the clock changes nothing."""
    began, start = time.time_ns(), time.monotonic_ns()
    while not ended.is_set():
        yield began + time.monotonic_ns() - start
        passed = time.monotonic_ns() - start
        following = (passed // interval + 1) * interval
        if duration is not None and following > duration:
            return
        ended.wait((following - passed) / 1e9)


class Recorder:
    """A context manager: samples every `interval` ns from its begin, and once at its end.

    `ring` takes them, too; it is closed with the block. `said` holds what sources were missing, a line each. Whatever
    ends the thread early (a full disk) is raised at the end of the block.
    """

    def __init__(self, sources: Sequence[Source], interval: int, ring: Ring | None = None) -> None:
        self.said: list[str] = []
        self._sampler = Sampler(sources, self.said.append)
        self._interval = interval
        self._ring = ring
        self._samples: list[tuple[int, Mapping[str, float]]] = []
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="gapless-recorder", daemon=True)

    @property
    def window(self) -> Window:
        """All samples until now."""
        return window.of_samples(list(self._samples))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if self._ring is not None:
            self._ring.close()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            for now in ticks(self._interval, None, self._ended):
                self._take(now)
            self._take(time.time_ns())
        except Exception as error:  # belongs to whoever started the recording
            self._failure = error

    def _take(self, now: int) -> None:
        self._samples.append((now, self._sampler.read()))
        if self._ring is not None:
            self._ring.append(*self._samples[-1])
