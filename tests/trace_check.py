"""A strict reader of trace events: whatever breaks the format, or does not nest, fails the test."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REQUIRED = {
    "M": {"args"},
    "X": {"ts", "dur"},
    "b": {"ts", "cat", "id"},
    "e": {"ts", "cat", "id"},
    "C": {"ts", "args"},
}


@dataclass
class Slice:
    """Times in ns from the trace's begin."""

    name: str
    begin: int
    end: int
    args: dict[str, Any]
    inside: list[Slice] = field(default_factory=list)


@dataclass
class Checked:
    began: int  # ns since the epoch
    process: str
    threads: dict[str, list[Slice]]  # by name, the outermost slices
    items: list[Slice]  # the outermost ones
    counters: dict[str, list[tuple[int, dict[str, float]]]]


def check(path: Path) -> Checked:
    whole = json.loads(path.read_text(), parse_constant=lambda text: _fail(f"{text} is no JSON"))
    assert set(whole) == {"traceEvents", "displayTimeUnit", "otherData"} and whole["displayTimeUnit"] in ("ms", "ns")
    names: dict[int, str] = {}
    process = ""
    timed: list[dict[str, Any]] = []
    for event in whole["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= set(event) and event["ph"] in REQUIRED, event
        assert REQUIRED[event["ph"]] <= set(event) and event["pid"] == 1 and isinstance(event["name"], str), event
        if event["ph"] != "M":
            assert event["ts"] >= 0 and isinstance(event.get("args", {}), dict), event
            timed.append(event)
        elif event["name"] == "process_name":
            process = event["args"]["name"]
        elif event["name"] == "thread_name":
            assert event["tid"] not in names, "named twice"
            names[event["tid"]] = event["args"]["name"]
    timed.sort(key=lambda event: event["ts"])  # stable: as it is shown
    complete = [event for event in timed if event["ph"] == "X"]
    assert {event["tid"] for event in complete} <= names.keys(), "a thread without a name"
    threads = {name: _nested([e for e in complete if e["tid"] == tid]) for tid, name in names.items()}
    return Checked(int(whole["otherData"]["began_epoch_ns"]), process, threads, _items(timed), _counters(timed))


def _nested(events: list[dict[str, Any]]) -> list[Slice]:
    """Each lies within the one before it, or begins when that has ended."""
    outer: list[Slice] = []
    stack: list[Slice] = []
    for event in events:
        begin = _ns(event["ts"])
        one = Slice(event["name"], begin, begin + _ns(event["dur"]), event.get("args", {}))
        assert one.end > one.begin, f"{event} takes no time"
        while stack and stack[-1].end <= one.begin:
            stack.pop()
        assert not stack or one.end <= stack[-1].end, f"{event} outlasts {stack[-1].name}"
        (stack[-1].inside if stack else outer).append(one)
        stack.append(one)
    return outer


def _items(events: list[dict[str, Any]]) -> list[Slice]:
    """Each end is of the slice that began last and is open."""
    outer: list[Slice] = []
    stacks: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    roots: set[tuple[str, str]] = set()
    for event in events:
        if event["ph"] not in "be":
            continue
        key, at = (event["cat"], event["id"]), _ns(event["ts"])
        stack = stacks[key]
        if event["ph"] == "b":
            one = Slice(event["name"], at, -1, event.get("args", {}))
            if not stack:
                assert key not in roots, f"{key} is used twice"
                roots.add(key)
            (stack[-1].inside if stack else outer).append(one)
            stack.append(one)
            continue
        assert stack and stack[-1].name == event["name"], f"{event} ends what is not open"
        ended = stack.pop()
        ended.end = at
        ended.args |= event.get("args", {})
        assert ended.end >= ended.begin
    assert not any(stacks.values()), "a slice without an end"
    return outer


def _counters(events: list[dict[str, Any]]) -> dict[str, list[tuple[int, dict[str, float]]]]:
    found: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, int | float) for value in event["args"].values()), event
            found[event["name"]].append((_ns(event["ts"]), event["args"]))
    return found


def _ns(us: float) -> int:
    assert isinstance(us, int | float)
    return round(us * 1000)


def _fail(why: str) -> None:
    raise AssertionError(why)
