"""From a trace to requests: which model and tier each row means, when it is sent, and what of it fits the model.

Must not know the server, clocks or locust.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path

from config_gen.sla.arrivals import TEMPLATE_TOKENS, Arrival, fitted
from config_gen.sla.quantity import show_duration
from config_gen.sla.spec import LlmModel
from loadtest.samples import Planned
from loadtest.schedule import MOST_REQUESTS, Part
from loadtest.trace import LONGEST, Mistakes, Row, TraceError, records, rows

MOST_TEXT = 10**8  # tokens of all prompts of a run: each is text in memory before the first is sent


@dataclass(frozen=True)
class Choice:
    """What is taken of a trace. `parts` are the models that are loaded; `alone`: the one that was named, other models'
    rows are left out. `tier` is that of all rows of a file that has no such column.

    Times are divided by `scale`; those of `duration` ns and later are cut, None = none.
    """

    path: Path
    parts: Sequence[Part]
    alone: bool = False
    tier: str | None = None
    scale: float = 1.0
    duration: int | None = None


@dataclass
class Trace:
    """What is sent, by model, in the order of time. `last` is ns until the last of them, `fitted` how many did not fit
    their model as they are, `text` the tokens of their prompts, `cut` how many more came too late to be sent."""

    arrivals: dict[str, list[Arrival]]
    last: int = 0
    fitted: int = 0
    text: int = 0
    cut: int = 0
    numbers: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.numbers.total()

    def planned(self, parts: Sequence[Part], seed: int) -> list[Planned]:
        """With texts, all models' in the order of time."""
        drawn = [part.planned(self.arrivals[part.name], seed) for part in parts]
        return list(merge(*drawn, key=lambda request: request.at))

    def notes(self, path: Path) -> list[str]:
        """Sentences about what was sent."""
        told = [f"Replayed {self.count} requests of {path}, {show_duration(self.last)} from first to last."]
        if self.fitted:
            told.append(f"{self.fitted} of them did not fit their model: cut to its longest, or raised to one token.")
        if self.cut:
            told.append(f"Left out, as later than --duration: {self.cut}.")
        return told


def read(choice: Choice) -> Trace:
    """Raises TraceError with a line per mistake: also where there is nothing to send, or too much to plan."""
    try:
        with choice.path.open(encoding="utf-8-sig", newline="") as file:
            return _read(choice, file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise TraceError(f"--trace: {choice.path}: {reason}; give a CSV file or JSON lines") from None


def _read(choice: Choice, lines: Iterable[str]) -> Trace:
    mistakes = Mistakes(choice.path, [])
    columns, found = records(choice.path, lines, mistakes)
    senders = Senders(choice, columns)
    trace = Trace({part.name: [] for part in choice.parts})
    seen = 0
    for row in rows(found, mistakes):
        seen += 1
        try:
            sender = senders.of(row)
            if sender is not None:
                _add(trace, row, *sender, choice)
        except ValueError as error:
            mistakes.add(row.line, str(error))
        if trace.count > MOST_REQUESTS or trace.text > MOST_TEXT:
            raise TraceError(
                f"{choice.path}: row {row.line}: more than can be planned, {MOST_REQUESTS} requests or {MOST_TEXT} "
                "tokens of prompts; cut it with --duration"
            )
    mistakes.check()
    if not trace.count:
        raise TraceError(f"{choice.path}: " + ("no row is of this model and time" if seen else "has no rows"))
    for arrivals in trace.arrivals.values():
        arrivals.sort(key=lambda arrival: arrival.at)
    return trace


class Senders:
    """Who sends a row: by its own columns, or by what was given for all. Raises TraceError where neither says it."""

    def __init__(self, choice: Choice, columns: frozenset[str]) -> None:
        self._parts = {part.name: part for part in choice.parts}
        self._tiers = {tier: tier for part in choice.parts for tier in part.tiers}
        self._alone = choice.alone
        if "model" not in columns and len(self._parts) > 1:
            raise TraceError(f"--model: is needed: {choice.path} has no column model; {', '.join(self._parts)}")
        if "tier" in columns and choice.tier is not None:
            raise TraceError(f"--tier: {choice.path} has a column tier of its own; leave the option out")
        if "tier" not in columns and choice.tier is None and len(self._tiers) > 1:
            raise TraceError(f"--tier: is needed: {choice.path} has no column tier; {', '.join(self._tiers)}")
        if choice.tier is not None and choice.tier not in self._tiers:
            raise TraceError(
                f"--tier: {reprlib.repr(choice.tier)} is not in the SLA file; it declares {', '.join(self._tiers)}"
            )
        self._part = None if "model" in columns else choice.parts[0]
        self._tier = None if "tier" in columns else choice.tier or next(iter(self._tiers))

    def of(self, row: Row) -> tuple[Part, str] | None:
        """Its model and tier; None when it is left out. Raises ValueError on a name that is not declared."""
        part = self._part or self._parts.get(row.model)
        if part is None and self._alone:
            return None
        if part is None:
            raise ValueError(f"model {reprlib.repr(row.model)} is not loaded; {', '.join(self._parts)}")
        tier = self._tier or self._tiers.get(row.tier)
        if tier is None:
            raise ValueError(f"tier {reprlib.repr(row.tier)} is not in the SLA file; {', '.join(self._tiers)}")
        return part, tier


def _add(trace: Trace, row: Row, part: Part, tier: str, choice: Choice) -> None:
    """Raises ValueError where the model cannot be asked for this."""
    prompt, output = _asked(part, row)
    at = int(row.at / choice.scale)
    if choice.duration is not None and at >= choice.duration:
        trace.cut += 1
        return
    if at > LONGEST:
        raise ValueError(f"--rate-scale {choice.scale:g} sends it after {at / 3.6e12:.3g} h; at most 10000 h")
    trace.fitted += (prompt, output) != (row.prompt or 0, row.output or 0)
    trace.text += prompt
    trace.last = max(trace.last, at)
    trace.arrivals[part.name].append(Arrival(tier, trace.numbers[part.name, tier], at, 0, prompt, output))
    trace.numbers[part.name, tier] += 1


def _asked(part: Part, row: Row) -> tuple[int, int]:
    """Tokens of the prompt and of the answer as they are sent."""
    if isinstance(part.model, LlmModel):
        if row.prompt is None or row.output is None:
            raise ValueError(f"{part.name} is an LLM: it needs numbers of prompt and output tokens")
        room = part.model.max_model_len - TEMPLATE_TOKENS
        return fitted(max(1, row.prompt), max(1, row.output), room)
    if row.output:
        raise ValueError(f"{part.name} answers in one piece: output tokens must be 0 or empty")
    if part.texts is None and row.prompt:
        raise ValueError(f"{part.name} is sent no text: prompt tokens must be 0 or empty")
    if part.texts is not None and row.prompt is None:
        raise ValueError(f"{part.name} is sent texts: it needs a number of prompt tokens")
    return (min(max(1, row.prompt or 0), part.model.max_length) if part.texts is not None else 0), 0
