"""A protobuf message as text that a person reads: through text_format, short messages on one line, reasons as comments.

Must not know what any field means.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from config_gen.plan import Knob

WIDTH = 120
FIRST = ("name", "backend", "max_batch_size")  # always there, and before the others, which come by their number


def commented(message: Message, knobs: Sequence[Knob]) -> str:
    """The text of `message`, each knob's reason above the field of its name; reasons without a field come first.

    A name is a path of field names, with the key of a map where one is: `parameters.device`. A comment stands above
    the first field of that name. What is parsed from the text is the message.
    """
    body = _Writer(knobs)
    lines = body.fields(message, "", "")
    text = "".join(f"{line}\n" for line in [*body.left(), *lines])
    assert text_format.Parse(text, type(message)()) == message, f"the comments changed the message:\n{text}"
    return text


def comment(text: str, indent: str = "") -> list[str]:
    """Lines of a comment, whatever the text holds: nothing in it may end the comment."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return textwrap.wrap(
        plain, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_on_hyphens=False
    )


class _Writer:
    """Fields to lines. Knobs that found their field are taken from `_waiting`."""

    def __init__(self, knobs: Sequence[Knob]) -> None:
        self._waiting: dict[str, list[Knob]] = {}
        for knob in knobs:
            self._waiting.setdefault(knob.name, []).append(knob)

    def left(self) -> list[str]:
        """Reasons whose field is not there, each with its name; what was left out is often what is asked about."""
        rest = [knob for knobs in self._waiting.values() for knob in knobs]
        lines = [line for knob in rest for line in comment(f"{knob.name} {knob.value}".strip() + f": {knob.reason}")]
        return [*lines, ""] if lines else []

    def fields(self, message: Message, path: str, indent: str) -> list[str]:
        """Lines of all fields; at the top a blank one between those that are more than a line."""
        lines: list[str] = []
        long = False
        for field, values in self._shown(message, path):
            at = f"{path}{field.name}"
            found = [line for key, value in values for line in self._value(field, value, at, key, indent)]
            if not found:
                continue
            if not path and lines and (long or len(found) > 1):
                lines.append("")
            long = len(found) > 1
            lines += found
        return lines

    def _shown(self, message: Message, path: str) -> Iterator[tuple[Any, list[tuple[str, Any]]]]:
        """Fields that are set, or that have a reason for being 0 or false; values with their key, "" but in a map."""
        order = {name: at - len(FIRST) for at, name in enumerate(FIRST)} if not path else {}
        for field in sorted(message.DESCRIPTOR.fields, key=lambda field: order.get(field.name, field.number)):
            value = getattr(message, field.name)
            if not isinstance(value, str | bytes | int | float | Message):
                yield field, list(_items(value))
            elif field.has_presence:
                yield field, [("", value)] if message.HasField(field.name) else []
            else:
                shown = _one_line(field, value).removeprefix(f"{field.name}: ")
                asked = any(knob.value == shown for knob in self._waiting.get(f"{path}{field.name}", []))
                yield field, [("", value)] if value or field.name in order or asked else []

    def _value(self, field: Any, value: Any, at: str, key: str, indent: str) -> list[str]:
        """The comment and the lines of one value; a message on one line unless a field of it has a reason."""
        at = f"{at}.{key}" if key else at
        above = [line for knob in self._waiting.pop(at, []) for line in comment(knob.reason, indent)]
        line = f"{indent}{_one_line(field, value)}"
        inside = field.message_type is not None and any(name.startswith(f"{at}.") for name in self._waiting)
        if field.message_type is None or not (inside or len(line) > WIDTH):
            return [*above, line]
        more = f"{indent}  "
        if key:
            first = _one_line(field.message_type.fields_by_name["key"], value.key)
            inner = self.fields(value.value, f"{at}.", f"{more}  ")
            within = [f"{more}{first}", f"{more}value {{", *inner, f"{more}}}"]
        else:
            within = self.fields(value, f"{at}.", more)
        return [*above, f"{indent}{field.name} {{", *within, f"{indent}}}"]


def _items(values: Any) -> Iterator[tuple[str, Any]]:
    """Values of a repeated field or, with their keys, the entries of a map in the order of their keys."""
    if hasattr(values, "GetEntryClass"):
        for key in sorted(values):
            yield str(key), values.GetEntryClass()(key=key, value=values[key])
    elif values and not isinstance(values[0], Message):
        yield "", list(values)
    else:
        yield from (("", value) for value in values)


def _one_line(field: Any, value: Any) -> str:
    """`name: value` or `name { … }`, as text_format writes them."""
    if isinstance(value, list):  # of a repeated field, on one line
        whole = [_one_line(field, one).removeprefix(f"{field.name}: ") for one in value]
        return f"{field.name}: [{', '.join(whole)}]"
    written = io.StringIO()
    text_format.PrintField(field, value, written, as_utf8=False, as_one_line=True, use_short_repeated_primitives=True)
    return written.getvalue().strip()
