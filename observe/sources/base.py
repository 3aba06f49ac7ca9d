"""What a source is. Must not know which there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class SourceError(RuntimeError):
    """The source is not there now; the message is the reason, in one line."""


class Source(Protocol):
    """One place that numbers come from."""

    @property
    def name(self) -> str:
        """For people."""

    def read(self) -> Mapping[str, float]:
        """What it says now, by the texts of series. Raises SourceError; may be asked again later."""

    def close(self) -> None:
        """Give back what reading has taken; nothing is read afterwards."""
