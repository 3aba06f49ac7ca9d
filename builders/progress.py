"""How a build tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # (what is going on, how much is done, of how much; 0 when not known)


def quiet(what: str, done: int, total: int) -> None:
    """For builds that nobody watches."""
