"""A recorded trace, CSV or JSON lines: who sent a request when, and of how many tokens. Checked as a whole.

Takes the columns of Azure's public traces of LLM inference (TIMESTAMP, ContextTokens, GeneratedTokens) as they are.
Must not know texts, the server, clocks or locust.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

FIELDS = {  # by the names of columns, in lower case and without spaces, _ and -
    "timestamp": "timestamp",
    "model": "model",
    "tier": "tier",
    "prompttokens": "prompt",
    "contexttokens": "prompt",
    "outputtokens": "output",
    "generatedtokens": "output",
}
NEEDED = {
    "timestamp": "timestamp",
    "prompt": "prompt_tokens (or ContextTokens)",
    "output": "output_tokens (or GeneratedTokens)",
}
MOST_TOLD = 20  # mistakes of a file
MOST_TOKENS = 10**9  # of a request
LONGEST = 10_000 * 3600 * 10**9  # ns from the first row to any other
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_SECONDS = re.compile(r"\d{1,15}(\.\d{1,20})?([eE][+-]?\d{1,2})?", re.ASCII)


class TraceError(ValueError):
    """A trace that cannot be replayed as asked: a line per mistake, with file and row."""

    exit_status = 2


class Row(NamedTuple):
    """A request. `model` and `tier` are "" where the file has no such column; tokens None where the cell is empty."""

    line: int
    at: int  # ns since the first row
    model: str
    tier: str
    prompt: int | None
    output: int | None


@dataclass
class Mistakes:
    """What is wrong in a file, by its line; at most MOST_TOLD are kept in words."""

    path: Path
    told: list[str]
    count: int = 0

    def add(self, line: int, what: str) -> None:
        self.count += 1
        if self.count <= MOST_TOLD:
            self.told.append(f"{self.path}: row {line}: {what}")

    def check(self) -> None:
        """Raise TraceError where there are any."""
        more = [f"{self.path}: and {self.count - MOST_TOLD} more"] if self.count > MOST_TOLD else []
        if self.count:
            raise TraceError("\n".join(self.told + more))


Record = tuple[int, Mapping[str, object]]  # the line where it ends, and what it says of each field


def records(path: Path, lines: Iterable[str], mistakes: Mistakes) -> tuple[frozenset[str], Iterator[Record]]:
    """The fields that a file has, and its records. Raises TraceError where a field that is needed is missing."""
    lines = iter(lines)
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        raw = _object(first)
        if raw is None:
            raise TraceError(f"{path}: row 1: is no JSON object")
        names = _fields(path, list(raw))
        return frozenset(names), _objects(chain([first], lines), names, mistakes)
    reader = csv.reader(chain([first], lines), strict=True)
    try:
        head = next(reader, [])
    except csv.Error as error:
        raise TraceError(f"{path}: row 1: is no CSV: {error}") from None
    places = {field: head.index(name) for field, name in _fields(path, head).items()}
    return frozenset(places), _cells(reader, places, len(head), mistakes)


def rows(found: Iterable[Record], mistakes: Mistakes) -> Iterator[Row]:
    """Those that can be read; the others are mistakes."""
    began: int | None = None
    for line, values in found:
        try:
            at = _moment(values["timestamp"])
            began = at if began is None else began
            yield Row(line, _since(at, began), *_names(values), *_counts(values))
        except ValueError as error:
            mistakes.add(line, str(error))


class Table(Protocol):
    """What csv.reader makes; `line_num` counts the lines that it has read."""

    @property
    def line_num(self) -> int: ...
    def __iter__(self) -> Iterator[list[str]]: ...


def _cells(reader: Table, places: Mapping[str, int], width: int, mistakes: Mistakes) -> Iterator[Record]:
    try:
        for cells in reader:
            if len(cells) == width:
                yield reader.line_num, {field: cells[place] for field, place in places.items()}
            elif cells:
                mistakes.add(reader.line_num, f"has {len(cells)} cells; the head has {width}")
    except csv.Error as error:
        mistakes.add(reader.line_num, f"is no CSV: {error}")


def _objects(lines: Iterable[str], names: Mapping[str, str], mistakes: Mistakes) -> Iterator[Record]:
    for line, text in enumerate(lines, 1):
        raw = _object(text)
        if raw is not None:
            yield line, {field: raw.get(name) for field, name in names.items()}
        elif text.strip():
            mistakes.add(line, "is no JSON object")


def _object(text: str) -> dict[str, object] | None:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None


def _fields(path: Path, names: Sequence[str]) -> dict[str, str]:
    """The column of each field. Raises TraceError where one that is needed is missing or given twice."""
    found: dict[str, str] = {}
    for name in names:
        field = FIELDS.get(re.sub(r"[\s_-]", "", name).lower())
        if field in found:
            raise TraceError(f"{path}: columns {found[field]!r} and {name!r} say the same; leave one out")
        if field is not None:
            found[field] = name
    if missing := [told for field, told in NEEDED.items() if field not in found]:
        has = ", ".join(names)[:200] or "none"
        raise TraceError(f"{path}: has no column {' and no '.join(missing)}; it has {has}")
    return found


def _moment(value: object) -> int:
    """ns since 1970 of a date (UTC where it says no zone), or of seconds."""
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if _SECONDS.fullmatch(text):
        return int(Decimal(text).scaleb(9))
    if match := _DATE.fullmatch(text):
        whole, fraction, zone = match.groups()
        with suppress(ValueError):  # a month 13, said below
            moment = datetime.fromisoformat(whole + (zone or "+00:00"))
            return (moment - EPOCH) // timedelta(seconds=1) * 10**9 + int((fraction or "").ljust(9, "0"))
    raise ValueError(f"timestamp {_shown(value)} is not allowed; seconds, or as 2023-11-16 18:15:46.68059")


def _since(at: int, began: int) -> int:
    if at < began:
        raise ValueError(f"timestamp is {(began - at) / 1e9:g} s before that of the first row; sort the file by time")
    if at - began > LONGEST:
        raise ValueError(f"timestamp is {(at - began) / 3.6e12:.0f} h after that of the first row; at most 10000 h")
    return at - began


def _names(values: Mapping[str, object]) -> tuple[str, str]:
    model, tier = values.get("model", ""), values.get("tier", "")
    for field, value in (("model", model), ("tier", tier)):
        if not isinstance(value, str):
            raise ValueError(f"{field} {_shown(value)} is no name")
    return str(model).strip(), str(tier).strip()


def _counts(values: Mapping[str, object]) -> tuple[int | None, int | None]:
    return _count("prompt", values["prompt"]), _count("output", values["output"])


def _count(field: str, value: object) -> int | None:
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if value is None or (isinstance(value, str) and not text):
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or int(text) > MOST_TOKENS:
        raise ValueError(f"{field} tokens {_shown(value)} are not allowed; a whole number from 0 to {MOST_TOKENS}")
    return int(text)


def _shown(value: object) -> str:
    shown = "of no value" if value is None or value == "" else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
