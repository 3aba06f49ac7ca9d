"""A step log as a trace: steps with their phases, gaps with their reasons, the life of every request, counters.

Wires the decode loop's log to the trace's format; must not know how either is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from config_gen.sla.quantity import show_duration
from decode.step_file import Header
from decode.step_gaps import REASONS, Gap, Gaps, Reason
from decode.step_log import Entry, Part
from gapless.request_tracks import RequestTracks
from observe.trace_events import TraceWriter

STEPS, GAPS = 1, 2  # threads


@dataclass
class Told:
    """What a trace shows, in numbers; times in ns, counted from where the trace begins."""

    span: int = 0
    steps: int = 0
    executing: int = 0
    requests: int = 0
    plan: int = 0  # of host gaps, as commit
    commit: int = 0
    total: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    longest: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    def lines(self) -> list[str]:
        """For people."""
        share = self.executing / self.span if self.span else 0.0
        requests = f"{self.requests:,} request{'' if self.requests == 1 else 's'}"
        steps = f"{self.steps:,} step{'' if self.steps == 1 else 's'}"
        gaps = [f"{name} {self._part(name)}" for name in REASONS]
        return [
            f"{steps} of {requests} in {show_duration(self.span)}: {share:.1%} executing",
            f"gaps: {', '.join(gaps)}",
        ]

    def _part(self, reason: Reason) -> str:
        total = self.total[reason]
        if not total:
            return "never"
        inner = f"longest {show_duration(self.longest[reason])}"
        if reason == "host":
            rest = total - self.plan - self.commit
            inner += f"; plan {self.plan / total:.0%}, commit {self.commit / total:.0%}, between {rest / total:.0%}"
        return f"{show_duration(total)}, {total / self.span:.1%} ({inner})"


class StepTrace:
    """Takes entries in their order; what lies before `since` (ns since the epoch) is left out or cut off there."""

    def __init__(self, writer: TraceWriter, header: Header, since: int) -> None:
        self.told = Told()
        self.ended = since
        self._writer, self._since = writer, since
        self._tiers = header.tiers
        self._gaps = Gaps()
        self._requests = RequestTracks(writer, since, header.open)
        writer.thread(STEPS, "steps")
        writer.thread(GAPS, "gaps")

    def add(self, entry: Entry) -> None:
        for gap in self._gaps.add(entry):
            self._gap(gap)
        self.ended = entry.began + entry.ended
        self._requests.planned(entry)
        if self.ended > self._since:
            self._step(entry)
            self._counters(entry)
        self._requests.executed(entry)

    def close(self) -> Told:
        """End what is open; the writer stays open."""
        for gap in self._gaps.close():
            self._gap(gap)
        self._requests.close(self.ended)
        self.told.requests = self._requests.shown
        self.told.span = self.ended - self._since
        return self.told

    def _step(self, entry: Entry) -> None:
        moments = [0, entry.planned, entry.executed, entry.ended]
        begin, planned, executed, end = (max(self._since, entry.began + moment) for moment in moments)
        if entry.work is None:
            self._writer.slice(STEPS, "no step", begin, end)
            return
        self.told.steps += 1
        self.told.executing += executed - planned
        args: dict[str, str | int | list[str]] = {"step": entry.step or 0, **entry.work._asdict()}
        args |= {"chunks": [self._chunk(part) for part in entry.parts]} | (
            {"error": entry.error} if entry.error else {}
        )
        self._writer.slice(STEPS, "failed step" if entry.error else "step", begin, end, args)
        for name, first, last in (("plan", begin, planned), ("execute", planned, executed), ("commit", executed, end)):
            if first < last:
                self._writer.slice(STEPS, name, first, last)
        tokens = {"prompt": entry.work.prefill_tokens, "decode": entry.work.decodes}
        self._writer.counter("tokens of a step", planned, tokens)

    def _chunk(self, part: Part) -> str:
        return f"{self._requests.name(part.seq)} {part.start}+{part.tokens}"

    def _gap(self, gap: Gap) -> None:
        begin = max(gap.begin, self._since)
        if gap.end <= begin:
            return
        told, length = self.told, gap.end - begin
        told.total[gap.reason] += length
        told.longest[gap.reason] = max(told.longest[gap.reason], length)
        args = {}
        if gap.reason == "host":
            # What is cut off is the begin of a gap, and plan comes last: commit has at most what plan leaves.
            plan = min(gap.plan, length)
            commit = min(gap.commit, length - plan)
            args = {"plan_us": plan / 1000, "commit_us": commit / 1000}
            told.plan, told.commit = told.plan + plan, told.commit + commit
        else:
            self._writer.counter("tokens of a step", begin, {"prompt": 0, "decode": 0})
        self._writer.slice(GAPS, gap.reason, begin, gap.end, args)

    def _counters(self, entry: Entry) -> None:
        self._writer.counter("running", self.ended, {"requests": entry.running})
        self._writer.counter("waiting", self.ended, dict(zip(self._tiers, entry.waiting, strict=True)))
        self._writer.counter("KV pages in use", self.ended, {"pages": entry.pages})
