"""The section `hardware`: the cards and the host that the models share.

A type of GPU is one that decode.executors.gpu_table has measurements or a datasheet of, or says its own memory.
Must not know how a file is read.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from config_gen.sla.fields import Memory, Section
from config_gen.sla.sla_text import show
from decode.executors.gpu_table import GpuError, gpu_names, gpu_table


def _for_editors(schema: dict[str, Any]) -> None:
    """A type is a known one unless `memory` is given. Spelled as gpu_table takes it: in any case, with - or _."""
    names = sorted(name for known, more in gpu_names().items() for name in (known, *more))
    spelled = "|".join("".join(map(_any_case, name)) for name in names)
    schema["properties"]["type"]["examples"] = [name.replace("_", "-") for name in names]
    schema["if"] = {"not": {"properties": {"memory": {"type": "string"}}, "required": ["memory"]}}
    schema["then"] = {"properties": {"type": {"pattern": f"^({spelled})$"}}}


def _any_case(letter: str) -> str:
    if letter == "_":
        return "[-_]"
    return f"[{letter.upper()}{letter}]" if letter.isalpha() else re.escape(letter)


class Gpu(Section):
    """Cards of one type."""

    model_config = ConfigDict(json_schema_extra=_for_editors)

    memory: Memory | None = None
    """Of one card. Needed for a type without measurements; of a known one, in place of what it has."""
    type: Annotated[str, Field(min_length=1, max_length=64)]
    """As a100-80gb; in any case, with - or _."""
    count: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    """How many there are."""

    @field_validator("type")
    @classmethod
    def _is_known(cls, name: str, info: ValidationInfo) -> str:
        if info.data.get("memory", 1) is None:  # one that is wrong is told of itself
            try:
                gpu_table(name)
            except GpuError:
                known = ", ".join(f"{own} ({', '.join(more)})" if more else own for own, more in gpu_names().items())
                raise ValueError(f"{show(name)} is not known; allowed: {known}, or any name with memory") from None
        return name

    @property
    def bytes(self) -> int:
        """Memory of one card."""
        return self.memory or int(gpu_table(self.type).raw["memory_bytes"])


class Hardware(Section):
    """What the models share. No GPUs means CPU."""

    gpus: tuple[Gpu, ...] = ()
    """Cards; [] for none."""
    sharing: Literal["auto", "in-process", "mps", "mig", "time-slice"] = "auto"
    """How several models come to share a card."""
    cores: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """Of the host, that the models may use; by default those of the machine that they were measured on."""
    memory: Memory | None = None
    """Of the host, that the models may use; by default that of the machine that they were measured on."""
