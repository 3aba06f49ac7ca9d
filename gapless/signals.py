"""Signals that end a command, turned into an exit, so that what it holds is put away. Must not know which command."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGHUP)


def leave_like_an_exception() -> None:
    """From now on SIGTERM and SIGHUP raise SystemExit(128 + number); one that is ignored (nohup) stays so."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def _leave(number: int, frame: object) -> NoReturn:
    for other in ENDING:  # a second one must not cut short what the first began
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)
