"""A mistake in an SLA file as one line: its path, the value that stands there, what is allowed.

Turns what pydantic found into words. Must not know how a file is read.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic_core import ErrorDetails

from config_gen.sla.fields import NAME, Section
from config_gen.sla.llm_model import LlmModel
from config_gen.sla.onnx_model import CAPABILITY, METRIC, OnnxModel
from config_gen.sla.sla_text import cut, show

KINDS: dict[str, type[Section]] = {"llm": LlmModel, "onnx": OnnxModel}
PATTERNS = {
    NAME: "letters, digits and . _ -, at most 64, the first a letter or digit",
    METRIC: "cosine, top1, max_abs_error or module:callable",
    CAPABILITY: "a compute capability such as '8.9'",
}
WANTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a number",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "model_attributes_type": "a mapping with the key kind and those of its kind",
    "string_type": "a text (in quotes)",
    "tuple_type": "a list",
}
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def line(error: ErrorDetails, root: type[Section]) -> str:
    """The mistake `error` in a file of the form `root`."""
    loc = _without_tag(error["loc"])
    path = ".".join(cut(str(part)) for part in loc) or "the file"
    value, context = show(error["input"]), error.get("ctx", {})
    if loc[-1:] == ("[key]",):
        where = ".".join(cut(str(part)) for part in loc[:-2])
        told = (
            "is not a text; write it in quotes"
            if error["type"] == "string_type"
            else f"is not allowed; {PATTERNS[NAME]}"
        )
        return f"{where}: the name {value} {told}"
    match error["type"]:
        case "missing":
            return f"{path}: is missing; it is required"
        case "extra_forbidden":
            return f"{path}: unknown key; allowed: {', '.join(_keys_at(error['loc'][:-1], root))}"
        case "value_error":
            return f"{path}: {context['error']}"
        case "literal_error":
            return f"{path}: {value} is not allowed; {context['expected']}"
        case "union_tag_not_found":
            return f"{path}.kind: is missing; it is required"
        case "union_tag_invalid":
            return f"{path}.kind: {show(context['tag'])} is not allowed; {context['expected_tags']}"
        case "string_pattern_mismatch":
            return f"{path}: {value} is not allowed; {PATTERNS[context['pattern']]}"
        case "too_short" | "string_too_short":
            return f"{path}: is empty; at least one {'is needed' if error['type'] == 'too_short' else 'character'}"
        case "too_long":
            return f"{path}: {value} is not allowed; at most {context['max_length']} of them"
        case "string_too_long":
            return f"{path}: {value} is not allowed; at most {context['max_length']} characters"
        case "model_type":
            keys = ", ".join(_keys_at(error["loc"], root))
            return f"{path}: {value} is not allowed; a mapping with the keys {keys}"
        case kind:
            return f"{path}: {value} is not allowed; {WANTED.get(kind) or _bound(context) or error['msg']}"


def _bound(context: dict[str, Any]) -> str:
    return "".join(f"{BOUNDS[name]} {bound:.10g}" for name, bound in context.items() if name in BOUNDS)


def _without_tag(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The path in the file: after a model's name pydantic puts its kind."""
    return loc[:2] + loc[3:] if loc[0:1] == ("models",) and loc[2:3] in (("llm",), ("onnx",)) else loc


def _keys_at(path: tuple[int | str, ...], root: type[Section]) -> list[str]:
    """The keys allowed in the section at `path`, found by walking the declarations."""
    at = root
    if path[:1] == ("models",) and len(path) > 2:  # pydantic puts the kind after the name
        at, path = KINDS[str(path[2])], path[3:]
    steps = iter(path)
    for step in steps:
        declared = at.model_fields[str(step)].annotation
        at = _section_in(declared)[0]
        if get_origin(declared) in (dict, tuple):
            next(steps, None)
    return list(at.model_fields)


def _section_in(declared: object) -> list[type[Section]]:
    """The sections that a declaration mentions: itself, of a mapping, a list, one that may be left out."""
    if isinstance(declared, type) and issubclass(declared, Section):
        return [declared]
    return [found for inner in get_args(declared) for found in _section_in(inner)]
