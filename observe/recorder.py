"""Samples at equal intervals until somebody ends it: in this thread, or beside something else for as long as it lasts.

Must not know what is measured meanwhile, nor what is done with the samples.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from observe import window
from observe.ring import Ring, RingError
from observe.sampler import Sampler
from observe.sources.base import Source
from observe.window import Window


def ticks(interval: int, duration: int | None, ended: threading.Event) -> Iterator[int]:
    """Moments in ns since the epoch, `interval` apart; missed ones are left out, setting the clock changes nothing.

    `duration` ends them, or `ended`, and then with a moment of its own: unless the last one is younger than half an
    interval, over which a rate is noise.
    """
    began, start = time.time_ns(), time.monotonic_ns()
    last = -interval
    while not ended.is_set():
        last = time.monotonic_ns() - start
        yield began + last
        passed = time.monotonic_ns() - start
        following = (passed // interval + 1) * interval
        if duration is not None and following > duration:
            return
        ended.wait((following - passed) / 1e9)
    passed = time.monotonic_ns() - start
    if 2 * (passed - last) >= interval:
        yield began + passed


def record(
    sources: Sequence[Source],
    interval: int,
    ended: threading.Event,
    say: Callable[[str], None],
    take: Callable[[int, Mapping[str, float]], None],
    duration: int | None = None,
) -> None:
    """A sample for `take` at each of the `ticks`; `say` is told what sources are missing, a line each.

    All sources are closed at the end.
    """
    sampler = Sampler(sources, say)
    try:
        for now in ticks(interval, duration, ended):
            take(now, sampler.read())
    finally:
        sampler.close()


class Recorder:
    """A context manager: records from its begin to its end, see `record`.

    `ring` takes the samples, too, and is closed with the block. `said` holds what sources were missing, and what
    ended the samples early: the block is worth more than they are. What a ring ends (a full disk) is raised at its end.
    """

    def __init__(self, sources: Sequence[Source], interval: int, ring: Ring | None = None) -> None:
        self.said: list[str] = []
        self._sources = sources
        self._interval = interval
        self._ring = ring
        self._samples: list[tuple[int, Mapping[str, float]]] = []
        self._begun, self._ended = threading.Event(), threading.Event()
        self._failure: RingError | None = None
        self._thread = threading.Thread(target=self._run, name="gapless-recorder", daemon=True)

    @property
    def window(self) -> Window:
        """All samples until now."""
        return window.of_samples(list(self._samples))

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()  # so that all of the block is between two samples
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
            record(self._sources, self._interval, self._ended, self.said.append, self._take)
        except RingError as error:  # belongs to whoever gave the ring
            self._failure = error
        except Exception as error:  # of a source: whatever it is, what was done meanwhile must not be lost with it
            self.said.append(f"no more samples: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        finally:
            self._begun.set()

    def _take(self, now: int, values: Mapping[str, float]) -> None:
        self._samples.append((now, values))
        if self._ring is not None:
            self._ring.append(now, values)
        self._begun.set()
