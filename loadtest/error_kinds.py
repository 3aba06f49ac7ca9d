"""Kinds of errors: what servers say names requests and counts, and a list of all of it would be as long as the load.

Must not know what is judged or how it is printed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loadtest.samples import Sample

SHOWN = 12  # kinds that people are shown of a tier
_OWN_ID, _GONE = "\0", "…"
_HEX = r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=[a-f]*[0-9])[0-9a-f]{12,}\b"
_OF_ONE = re.compile(rf"{_OWN_ID}|{_HEX}|\b[0-9]+(?:\.[0-9]+)?", re.IGNORECASE)
_WORD = re.compile(r"[\w./-]*\w")


@dataclass
class _Kind:
    """Errors that are alike but for `parts`, which are those of the first; `differ` are the places of others."""

    parts: list[str]
    differ: set[int] = field(default_factory=set)
    count: int = 0

    def add(self, parts: list[str]) -> None:
        self.count += 1
        self.differ.update(at for at, (one, other) in enumerate(zip(self.parts, parts, strict=True)) if one != other)

    def told(self, frame: str) -> str:
        first, *words = frame.split(_OWN_ID)
        parts = [_GONE if at in self.differ else part for at, part in enumerate(self.parts)]
        return first + "".join(part + word for part, word in zip(parts, words, strict=True))


def kinds(failed: Iterable[Sample]) -> dict[str, int]:
    """How often each kind of error came, the most frequent first.

    Errors are of one kind when they differ at most in what belongs to one request: its id, UUIDs, numbers in
    hexadecimal (after 0x, or of 12 digits and more) and in decimal, unless these are the end of a word, as in `gpu0`.
    What differs so is told as …; a number that is the same in all errors of a kind stays, as a limit that was reached.
    """
    found: dict[str, _Kind] = {}
    for sample in failed:
        text = _without(sample.id, sample.error)
        parts = [sample.id if part == _OWN_ID else part for part in _OF_ONE.findall(text)]
        frame = _OF_ONE.sub(_OWN_ID, text)
        found.setdefault(frame, _Kind(parts)).add(parts)
    counted = Counter[str]()
    for frame, kind in found.items():
        counted[kind.told(frame)] += kind.count
    return dict(counted.most_common())


def _without(id: str, text: str) -> str:
    """With _OWN_ID in place of the request's id, where it is a word of its own."""
    if id not in text:
        return text
    return _WORD.sub(lambda word: _OWN_ID if word[0] == id else word[0], text)


def most(errors: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent kinds, SHOWN of them at most."""
    return Counter(errors).most_common(SHOWN)


def more(errors: Mapping[str, int]) -> str:
    """Says of the others how many they are; empty where there are none."""
    others = len(errors) - SHOWN
    return "" if others <= 0 else f"and {others} more kind{'s' if others > 1 else ''}"
