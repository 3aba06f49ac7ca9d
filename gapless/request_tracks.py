"""The life of each request in a trace: it waits, its prompt is computed in chunks, it decodes, may be preempted, ends.

Must not know gaps or counters.
"""

from __future__ import annotations

from collections.abc import Iterable

from decode.step_log import Entry, Part, Started
from observe.trace_events import TraceWriter


class _Request:
    """One that has not ended. `doing` since `since` is what goes on; None between the chunks of a prompt."""

    def __init__(self, number: int, name: str, tier: str, prompt: int, arrived: int) -> None:
        self.number, self.name, self.tier, self.prompt, self.arrived = number, name, tier, prompt, arrived
        self.doing: str | None = "queue"
        self.since = arrived
        self.until = arrived  # when its last chunk had been executed
        self.seq: int | None = None
        self.cached = 0
        self.preemptions = 0
        self.shown = False


class RequestTracks:
    """Takes entries in their order; writes nothing that lies before `since`. `shown` counts requests written."""

    def __init__(self, writer: TraceWriter, since: int, started: Iterable[Started]) -> None:
        self.shown = 0
        self._writer, self._since = writer, since
        self._numbers = 0
        self._by_name: dict[str, _Request] = {}
        self._by_seq: dict[int, _Request] = {}
        for one in started:
            self._start(one, one.arrived)

    def name(self, seq: int) -> str:
        request = self._by_seq.get(seq)
        return f"#{seq}" if request is None else request.name

    def planned(self, entry: Entry) -> None:
        """Who came, started and gave way."""
        for came in entry.came:
            self._new(came.id, came.tier, came.prompt, entry.began)
        for started in entry.started:
            self._start(started, entry.began + entry.planned)
        for seq, saved in entry.preempted:
            self._preempt(seq, saved, entry.began)

    def executed(self, entry: Entry) -> None:
        """Whose tokens were computed, and who ended."""
        for part in entry.parts:
            self._compute(part, entry.began + entry.planned, entry.began + entry.executed)
        for gone in entry.gone:
            if (request := self._by_name.get(gone.id)) is not None:
                self._end(request, gone.reason, entry.began + entry.ended, gone.output)

    def close(self, now: int) -> None:
        """The log has ended, and some requests have not."""
        for request in list(self._by_name.values()):
            self._end(request, "still open", now)

    def _new(self, name: str, tier: str, prompt: int, arrived: int) -> _Request:
        self._numbers += 1
        request = self._by_name[name] = _Request(self._numbers, name, tier, prompt, arrived)
        return request

    def _start(self, one: Started, now: int) -> None:
        request = self._by_name.get(one.id) or self._new(one.id, one.tier, one.prompt, one.arrived)
        request.cached, request.seq = one.cached, one.seq
        self._by_seq[one.seq] = request
        self._leave(request, now)

    def _preempt(self, seq: int, saved: bool, now: int) -> None:
        if (request := self._by_seq.get(seq)) is not None:
            self._leave(request, request.until)
            request.doing, request.since = "swapped out" if saved else "preempted", now
            request.preemptions += 1

    def _compute(self, part: Part, began: int, executed: int) -> None:
        request = self._by_seq.get(part.seq)
        if request is None:  # it started before the log did
            return
        if part.tokens == 1 and part.start >= request.prompt:
            if request.doing != "decode":
                self._leave(request, began)
                request.doing, request.since = "decode", began
        else:
            self._leave(request, began)
            again = "again" if request.preemptions else "prompt"
            self._write(request, f"{again} {part.start}+{part.tokens}", began, executed)
        request.until = executed

    def _leave(self, request: _Request, now: int) -> None:
        """What it was doing ends."""
        if request.doing is not None:
            self._write(request, request.doing, request.since, now)
            request.doing = None

    def _end(self, request: _Request, reason: str, now: int, output: int | None = None) -> None:
        self._leave(request, request.until if request.doing == "decode" else now)
        if now > self._since:
            self._show(request)
            args: dict[str, str | int] = {"end": reason, "preemptions": request.preemptions}
            if output is not None:
                args["output_tokens"] = output
            self._writer.end(request.number, request.name, now, args)
        del self._by_name[request.name]
        if request.seq is not None:
            self._by_seq.pop(request.seq, None)

    def _write(self, request: _Request, name: str, begin: int, end: int) -> None:
        begin = max(begin, self._since)
        if begin < end:
            self._show(request)
            self._writer.begin(request.number, name, begin)
            self._writer.end(request.number, name, end)

    def _show(self, request: _Request) -> None:
        """Its outermost slice begins before all others of it."""
        if not request.shown:
            request.shown = True
            self.shown += 1
            args: dict[str, str | int] = {
                "tier": request.tier,
                "prompt_tokens": request.prompt,
                "cached_tokens": request.cached,
            }
            self._writer.begin(request.number, request.name, max(request.arrived, self._since), args)
