"""The text of an SLA file as plain values: YAML within a spec's bounds, and how values are shown in messages.

Must not know what the keys of a spec mean.
"""

from __future__ import annotations

import reprlib
from typing import Any

import yaml

_REPR = reprlib.Repr()  # cuts while it writes
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlong = 3, 60, 60, 60
DEEPEST = 20  # levels of a file; a spec has five
LARGEST = 2**63  # of a whole number, whatever its base


class SpecError(ValueError):
    """An SLA file that cannot be used; one line per mistake."""

    exit_status = 2


def read_mapping(text: str) -> tuple[dict[str, Any], list[str]]:
    """The mapping that `text` is, and one line for every key given twice. Raises SpecError when it is none."""
    try:
        loader = _Loader(text)
        try:
            raw = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SpecError(f"{where}not YAML: {' '.join(problem.splitlines())}") from None
    if not isinstance(raw, dict):
        raise SpecError(f"the file holds {show(raw)}; allowed: a mapping, as in sla/demo.yaml")
    return raw, loader.repeated


def show(value: object) -> str:
    """A value as it is named in a message: as YAML writes it, strings in quotes."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return cut(_REPR.repr(value))


def cut(text: str) -> str:
    """At most 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Loader(yaml.SafeLoader):
    """Plain YAML without aliases, of a spec's depth and numbers; a key given twice is noted: the last would win.

    An alias says nothing that a spec needs, and ten of them within each other make a file of gigabytes.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name) is not allowed; write it out", problem_mark=mark)
        if self._depth == DEEPEST:
            problem = f"nested deeper than the {DEEPEST} levels allowed"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, int) and abs(value) >= LARGEST:
                raise ValueError
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):  # what the library lets through
            problem = f"{show(node.value)} is not a {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                self.repeated.append(f"line {key.start_mark.line + 1}: key '{cut(name)}' is given twice; allowed: once")
            seen.add(name)
        pairs: dict[Any, Any] = super().construct_mapping(node, deep=True)
        return pairs
