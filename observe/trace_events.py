"""Chrome's trace events, the JSON that Perfetto's UI and chrome://tracing open, written as they come.

Threads hold slices that nest by their times; an item (async events of one id) holds slices of its own, which must begin
and end in the order of nesting; counters hold values that stay until the next ones. Times are ns since the epoch, in
the file µs since `began`, which stands in it (`otherData`). Must not know what is traced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TextIO

Args = Mapping[str, str | int | float | Sequence[str]]

PROCESS = 1
ITEM = "request"  # category of all items: an id stands for one only within its category


class TraceWriter:
    """One process. Whatever is written must not lie before `began`."""

    def __init__(self, out: TextIO, process: str, began: int) -> None:
        self._out = out
        self._began = began
        self._last: dict[str, Args] = {}  # of each counter
        out.write(f'{{"displayTimeUnit":"ms","otherData":{{"began_epoch_ns":"{began}"}},"traceEvents":[\n')
        out.write(json.dumps({"ph": "M", "pid": PROCESS, "tid": 0, "name": "process_name", "args": {"name": process}}))

    def thread(self, number: int, name: str) -> None:
        """Name a thread; they are shown in the order of their numbers, from 1."""
        self._write("M", "thread_name", number, {"args": {"name": name}})
        self._write("M", "thread_sort_index", number, {"args": {"sort_index": number}})

    def slice(self, thread: int, name: str, begin: int, end: int, args: Args | None = None) -> None:
        """One that holds others comes before them."""
        more: dict[str, object] = {"ts": self._us(begin), "dur": (end - begin) / 1000}
        self._write("X", name, thread, more | ({"args": args} if args else {}))

    def begin(self, item: int, name: str, at: int, args: Args | None = None) -> None:
        more: dict[str, object] = {"cat": ITEM, "id": hex(item), "ts": self._us(at)}
        self._write("b", name, 0, more | ({"args": args} if args else {}))

    def end(self, item: int, name: str, at: int, args: Args | None = None) -> None:
        """The slice of this name that began last."""
        more: dict[str, object] = {"cat": ITEM, "id": hex(item), "ts": self._us(at)}
        self._write("e", name, 0, more | ({"args": args} if args else {}))

    def counter(self, name: str, at: int, values: Args) -> None:
        """Values that have not changed are not written again."""
        if self._last.get(name) != values:
            self._last[name] = values
            self._write("C", name, 0, {"ts": self._us(at), "args": values})

    def close(self) -> None:
        """Nothing may be written after it."""
        self._out.write("\n]}\n")

    def _us(self, moment: int) -> float:
        return (moment - self._began) / 1000

    def _write(self, kind: str, name: str, thread: int, more: Mapping[str, object]) -> None:
        event = {"ph": kind, "pid": PROCESS, "tid": thread, "name": name, **more}
        self._out.write(",\n" + json.dumps(event, separators=(",", ":"), allow_nan=False))
