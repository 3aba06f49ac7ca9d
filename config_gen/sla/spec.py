"""The SLA file: what a user promises, for which models, under which traffic. Read and checked here, frozen afterwards.

Every mistake is reported at once, one line each: path, value, what is allowed.
Must not know torch, sockets, Triton or how anything is derived from the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema

from config_gen.sla import complaints, json_schema
from config_gen.sla.fields import Name, Section, Share
from config_gen.sla.hardware import Gpu, Hardware
from config_gen.sla.llm_model import LlmModel, LlmTraffic
from config_gen.sla.onnx_model import SERVING, Accuracy, Engine, Image, OnnxModel, OnnxTraffic, ResponseCache
from config_gen.sla.sections import Lengths, Targets, Tier
from config_gen.sla.sla_text import SpecError, cut, read_mapping, show

__all__ = [
    "SERVING",
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
    "ResponseCache",
    "Spec",
    "SpecError",
    "Targets",
    "Tier",
    "load",
    "parse",
    "schema",
]


def _version(value: object) -> object:
    if value != 1 or not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{show(value)} is not allowed; 1, the version of this format")
    return value


class Spec(Section):
    """The whole file, checked."""

    gapless: Annotated[int, BeforeValidator(_version), WithJsonSchema({"const": 1})]
    """Version of the format."""
    hardware: Hardware = Hardware()
    """What the models share; without it, the CPU of one machine."""
    headroom: Share = 0.2
    """Targets are to hold at the declared rates and this share more; 20% unless it is given."""
    tiers: Annotated[dict[Name, Tier], Field(min_length=1)]
    """Traffic classes, by name; the first goes before the last."""
    models: Annotated[
        dict[Name, Annotated[LlmModel | OnnxModel, Field(discriminator="kind")]],
        Field(min_length=1),
    ]
    """What is served, by name."""


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
        mistakes = mistakes + [complaints.line(found, Spec) for found in error.errors(include_url=False)]
    mistakes = mistakes + _undeclared_tiers(raw)
    if spec is None or mistakes:
        raise SpecError("\n".join(" ".join(mistake.splitlines()) for mistake in mistakes))
    return spec


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of an SLA file, for editors. Every file that `parse` takes fits it."""
    return json_schema.of(Spec, "SLA file of gapless")


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
