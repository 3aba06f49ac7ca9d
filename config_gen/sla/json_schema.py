"""JSON Schema (2020-12) of a file's form, for editors: what can be written, where, and what it means.

Laxer than the checks themselves, never stricter: it knows no mistakes that take two places to see.
Must not know which sections there are.
"""

from __future__ import annotations

import re
from typing import Any

from config_gen.sla.fields import Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def of(root: type[Section], title: str) -> dict[str, Any]:
    """The schema of files whose form is `root`."""
    made = root.model_json_schema()
    _tidy(made)
    return {"$schema": DIALECT, **made, "title": title}


def _tidy(node: Any) -> None:
    """In place: defaults only as files write them, names of mappings checked, no titles that only repeat a key."""
    if isinstance(node, list):
        for inner in node:
            _tidy(inner)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("title"), str):
        del node["title"]
    if "default" in node and not _is_written_so(node["default"], node):
        del node["default"]
    if "patternProperties" in node:
        node["additionalProperties"] = False
    for inner in node.values():
        _tidy(inner)


def _is_written_so(default: object, node: dict[str, Any]) -> bool:
    """Whether a file could hold this; quantities are numbers and fractions once they are read."""
    if node.get("type") == "string":
        return isinstance(default, str) and re.search(node.get("pattern", ""), default) is not None
    return default is not None and not isinstance(default, dict)
