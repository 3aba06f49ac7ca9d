"""What can be wrong with an engine, and with one item that it is given; each one line that says what is allowed."""

from __future__ import annotations


class EngineError(ValueError):
    """An engine that cannot be used on this machine."""

    exit_status = 2


class ItemError(ValueError):
    """One item that cannot be computed; those beside it in a batch can."""
