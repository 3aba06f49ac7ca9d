"""The SLA file: what a user promises, for which models, under which traffic. Read and checked here, frozen afterwards.

Every mistake is reported at once, one line each: path, value, what is allowed.
Must not know torch, sockets, Triton or how anything is derived from the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from config_gen.onnx_model import CAPABILITY, METRIC, Accuracy, Engine, Image, OnnxModel, OnnxTraffic
from config_gen.sections import SOURCES, Gpu, Hardware, Lengths, LlmModel, LlmTraffic, Section, Targets, Tier
from config_gen.sla_text import SpecError, cut, read_mapping, show

__all__ = [
    "Accuracy",
    "Engine",
    "Gpu",
    "Hardware",
    "Image",
    "Lengths",
    "LlmModel",
    "LlmTraffic",
    "OnnxModel",
    "OnnxTraffic",
    "Spec",
    "SpecError",
    "Targets",
    "Tier",
    "load",
    "parse",
]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # of a model: a folder, a part of an address, a label
ALLOWED = {
    NAME: "letters, digits and . _ -, at most 64",
    METRIC: "cosine, top1, max_abs_error or module:callable",
    CAPABILITY: "a compute capability such as '8.9'",
}


class Spec(Section):
    """The whole file, checked."""

    gapless: Annotated[int, Field(strict=True, ge=1, le=1)]  # version of the format
    hardware: Hardware = Hardware()
    tiers: Annotated[dict[str, Tier], Field(min_length=1)]
    models: Annotated[
        dict[Annotated[str, Field(pattern=NAME)], Annotated[LlmModel | OnnxModel, Field(discriminator="kind")]],
        Field(min_length=1),
    ]


def load(path: Path) -> Spec:
    """Read and check an SLA file. Raises SpecError with one line per mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise SpecError(f"{path}: {reason}; give an SLA file") from None
    try:
        return parse(text)
    except SpecError as error:
        raise SpecError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def parse(text: str) -> Spec:
    """Check the text of an SLA file. Raises SpecError with one line per mistake."""
    raw, mistakes = read_mapping(text)
    spec = None
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        mistakes = mistakes + _describe_all(error.errors(include_url=False))
    mistakes = mistakes + _undeclared_tiers(raw)
    if spec is None or mistakes:
        raise SpecError("\n".join(" ".join(mistake.splitlines()) for mistake in mistakes))
    return spec


def _undeclared_tiers(raw: Mapping[str, Any]) -> list[str]:
    """Checked on the raw data, so that these mistakes are told together with those of form."""
    declared = raw.get("tiers")
    models = raw.get("models")
    if not isinstance(declared, dict) or not isinstance(models, dict):
        return []
    return [
        f"models.{cut(str(name))}.{section}.{cut(str(tier))}: tier '{cut(str(tier))}' is not declared; "
        f"allowed: {', '.join(cut(str(t)) for t in declared)}"
        for name, model in models.items()
        if isinstance(model, dict)
        for section in ("targets", "traffic")
        if isinstance(model.get(section), dict)
        for tier in model[section]
        if tier not in declared
    ]


def _describe_all(errors: list[ErrorDetails]) -> list[str]:
    return [_describe(error) for error in errors]


def _describe(error: ErrorDetails) -> str:
    loc = _without_tag(error["loc"])
    path = ".".join(cut(str(part)) for part in loc) or "the file"
    value, context = show(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"{path}: is missing; it is required"
        case "extra_forbidden":
            return f"{path}: unknown key; allowed: {', '.join(_keys_at(error['loc'][:-1]))}"
        case "value_error":
            return f"{path}: {context['error']}"
        case "literal_error":
            return f"{path}: {value} is not allowed; {context['expected']}"
        case "union_tag_not_found":
            return f"{path}.kind: is missing; it is required"
        case "union_tag_invalid":
            return f"{path}.kind: {show(context['tag'])} is not allowed; {context['expected_tags']}"
        case "string_pattern_mismatch":
            return f"{path}: {value} is not allowed; {ALLOWED[context['pattern']]}"
        case "too_short":
            return f"{path}: is empty; at least one is needed"
        case "model_type":
            return f"{path}: {value} is not allowed; a mapping with the keys {', '.join(_keys_at(error['loc']))}"
        case "model_attributes_type":
            return f"{path}: {value} is not allowed; a mapping with the key kind and those of its kind"
        case _:
            return f"{path}: {value} is not allowed; {error['msg'].removeprefix('Input should be ')}"


def _without_tag(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The path in the file: after a model's name pydantic puts its kind."""
    return loc[:2] + loc[3:] if loc[0:1] == ("models",) and loc[2:3] in (("llm",), ("onnx",)) else loc


def _keys_at(path: tuple[int | str, ...]) -> list[str]:
    """The keys allowed in the section at `path`, found by walking the declarations."""
    at: Any = Spec
    for step in path:
        if isinstance(at, type) and issubclass(at, Section):
            at = at.model_fields[str(step)].annotation
        elif step in SOURCES:  # the kind of a model, which pydantic puts into the path
            at = {"llm": LlmModel, "onnx": OnnxModel}[str(step)]
        else:  # dict[str, section], tuple[section, ...]
            at = next(inner for inner in get_args(at) if inner not in (str, Ellipsis))
        if type(None) in get_args(at):
            at = next(inner for inner in get_args(at) if inner is not type(None))
    return list(at.model_fields)
