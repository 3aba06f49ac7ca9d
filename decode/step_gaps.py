"""When nothing was executed, and why: the time between the steps of a log, all of it.

`no request`: there was none. `requests wait`: the scheduler found nothing to do for those that were there. `host`:
there was work, and it waited for this process, which committed results and handed them out, took inputs and planned;
or, between two rounds, another thread had the interpreter. Must not know how gaps are shown.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from decode.step_log import Entry

Reason = Literal["no request", "requests wait", "host"]
REASONS: tuple[Reason, ...] = ("no request", "requests wait", "host")


class Gap(NamedTuple):
    """Times in ns; begin and end since the epoch. The rest of a gap is `between` rounds."""

    reason: Reason
    begin: int
    end: int
    plan: int = 0
    commit: int = 0


class Gaps:
    """Takes the entries of a log in their order. Gaps and executions together leave out nothing."""

    def __init__(self) -> None:
        self._last: Entry | None = None
        self._open: Gap | None = None

    def add(self, entry: Entry) -> list[Gap]:
        """Gaps that ended before the entry's step was executed."""
        found: list[Gap] = []
        began, last = entry.began, self._last
        if last is not None:
            reason: Reason = "no request" if last.idle else "requests wait" if last.step is None else "host"
            self._extend(found, Gap(reason, last.began + last.ended, began))
        self._extend(found, Gap("host", began, began + entry.planned, plan=entry.planned))
        if entry.step is not None and self._open is not None:
            found.append(self._open)
            self._open = None
        commit = entry.ended - entry.executed
        self._extend(found, Gap("host", began + entry.executed, began + entry.ended, commit=commit))
        self._last = entry
        return found

    def close(self) -> list[Gap]:
        """The one that lasted until the end of the log."""
        return [] if self._open is None else [self._open]

    def _extend(self, found: list[Gap], more: Gap) -> None:
        """Go on with the open gap, or end it and open the next one."""
        was = self._open
        if more.begin == more.end:
            return
        if was is not None and was.reason != more.reason:
            found.append(was)
            was = None
        if was is None:
            self._open = more
        else:
            self._open = Gap(was.reason, was.begin, more.end, was.plan + more.plan, was.commit + more.commit)
