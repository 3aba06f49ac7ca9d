"""One sample of all sources that are there; who is missing is said once. Must not know what is done with samples.

Beside the sources' own series each sample has `observe_up{source}`, 1 or 0, and `observe_read_seconds{source}`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from observe.series import named
from observe.sources.base import Source, SourceError


class Sampler:
    """Reads `sources`; `say` takes a line for people."""

    def __init__(self, sources: Sequence[Source], say: Callable[[str], None]) -> None:
        self._sources = sources
        self._say = say
        self._there: dict[str, bool] = {}  # whether a source answered when it was last asked
        self._said: set[str] = set()  # what has been said of sources, each at most once: one may come and go for hours

    def read(self) -> Mapping[str, float]:
        """By the texts of series; without what is not there now."""
        found: dict[str, float] = {}
        for source in self._sources:
            began = time.perf_counter()
            try:
                found |= source.read()
            except SourceError as error:
                if self._there.get(source.name) is not False:
                    self._tell(f"{source.name} is {'gone' if source.name in self._there else 'missing'}", error)
                self._there[source.name] = False
            else:
                self._there[source.name] = True
            found[named("observe_up", source=source.name)] = self._there[source.name]
            found[named("observe_read_seconds", source=source.name)] = round(time.perf_counter() - began, 6)
        return found

    def close(self) -> None:
        """Close the sources."""
        for source in self._sources:
            source.close()

    def _tell(self, what: str, reason: SourceError) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(f"{what}: {reason}; left out until it is there")
