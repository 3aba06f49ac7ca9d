"""Where things stand in a config.pbtxt: every field with its line, also those that a parser would drop or refuse.

Protobuf's own parser says what a text means; this scanner says where, what is written twice and what is not written at
all. It takes any text and raises nothing: what it does not understand it passes by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DEEPEST = 24  # levels of messages; a model configuration has seven
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<hole>\$\{[^}\n]*\})
      | (?P<word>[\w.+-]+)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
HOLE = re.compile(r"\$\{[^}\n]*\}")
_CLOSING = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # string, hole, word, mark
    text: str
    line: int  # from 1


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a field; a list in brackets is one Field for each of its values."""

    name: str
    line: int
    text: str = ""  # of a scalar, as written; a string without its quotes
    fields: tuple[Field, ...] = ()  # of a message

    def all(self, name: str) -> list[Field]:
        return [field for field in self.fields if field.name == name]

    def at(self, *path: str | int) -> Field:
        """The field that a path leads to, or the last one on the way that is there; a number picks among a name's."""
        here = self
        for part, index in _steps(path):
            found = here.all(part)
            if not 0 <= index < len(found):
                return here
            here = found[index]
        return here


def _steps(path: tuple[str | int, ...]) -> Iterator[tuple[str, int]]:
    for place, part in enumerate(path):
        if isinstance(part, str):
            following = path[place + 1] if place + 1 < len(path) else 0
            yield part, following if isinstance(following, int) else 0


def tokens(text: str) -> list[Token]:
    """All but spaces and comments."""
    found, line = [], 1
    for match in _TOKEN.finditer(text):
        if (kind := str(match.lastgroup)) != "space":
            found.append(Token(kind, match[0], line))
        line += match[0].count("\n")
    return found


def scan(text: str) -> Field:
    """The whole text as one Field without a name."""
    reader = _Reader(tokens(text))
    return Field("", 1, fields=tuple(reader.message("", 0)))


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take_mark(self, marks: str) -> str:
        """The mark that comes next if it is one of these, else nothing."""
        token = self._peek()
        if token is None or token.kind != "mark" or token.text not in marks:
            return ""
        self._next += 1
        return token.text

    def message(self, closing: str, depth: int) -> Iterator[Field]:
        """Fields up to `closing`, which is taken."""
        while (token := self._peek()) is not None:
            self._next += 1
            if token.kind == "mark" and token.text == closing:
                return
            if token.kind == "word":
                yield from self._values(token, depth)

    def _values(self, name: Token, depth: int) -> Iterator[Field]:
        colon = self._take_mark(":")
        if self._take_mark("["):
            while self._peek() is not None and not self._take_mark("]"):
                before = self._next
                yield from self._value(name.text, depth)
                if self._next == before:  # a comma, or what belongs nowhere
                    self._next += 1
        elif colon or ((token := self._peek()) is not None and token.text in ("{", "<")):
            yield from self._value(name.text, depth, name.line)

    def _value(self, name: str, depth: int, line: int = 0) -> Iterator[Field]:
        """`line` is the name's; without one, as in a list, it is the value's own."""
        token = self._peek()
        if token is None or (token.kind == "mark" and token.text not in "{<"):
            return
        line = line or token.line
        if opened := self._take_mark("{<"):
            if depth < DEEPEST:
                yield Field(name, line, fields=tuple(self.message(_CLOSING[opened], depth + 1)))
            return
        text = ""
        while (token := self._peek()) is not None and token.kind in ("string", "hole", "word"):
            self._next += 1
            text += token.text[1:-1] if token.kind == "string" else token.text
            following = self._peek()
            if token.kind != "string" or following is None or following.kind != "string":
                break
        yield Field(name, line, text)
