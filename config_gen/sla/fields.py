"""What fields of the SLA file are made of: quantities with units, counts, names, and the section that holds them.

Each type brings what editors are told of it. Must not know which sections there are or how a file is read.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from config_gen.sla import quantity
from config_gen.sla.sla_text import show

NUMBER = r"(\d+(\.\d+)?|\.\d+)"
ABOVE_0 = r"(?=[^1-9]*[1-9])"  # there is a digit beside zeros
TIME = r"(ns|us|ms|s|m|min|h)"
SIZE = r"(B|[KMGT]iB|[kMGT]B)"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # a folder, a part of an address, a label


def _text(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": rf"^{pattern}$", "examples": [*examples]})


Duration = Annotated[
    int, BeforeValidator(quantity.duration), _text(rf"\s*{ABOVE_0}{NUMBER}\s*{TIME}\s*", "300ms", "2s")
]
Delay = Annotated[
    int, BeforeValidator(lambda value: quantity.duration(value, least=0)), _text(rf"\s*{NUMBER}\s*{TIME}\s*", "2ms")
]
Rate = Annotated[
    float, BeforeValidator(quantity.rate), _text(rf"\s*{ABOVE_0}{NUMBER}\s*/(s|m|min|h)\s*", "8/s", "90/min")
]
Share = Annotated[
    float, BeforeValidator(quantity.share), _text(r"\s*(0*(100(\.0+)?|\d{1,2}(\.\d+)?)|\.\d+)\s*%\s*", "40%")
]
Percentile = Annotated[
    Fraction, BeforeValidator(quantity.percentile), _text(rf"p{ABOVE_0}\d{{1,2}}(\.\d{{1,6}})?", "p95", "p99", "p99.9")
]
Memory = Annotated[int, BeforeValidator(quantity.memory), _text(rf"\s*{ABOVE_0}{NUMBER}\s*{SIZE}\s*", "2GiB", "512MiB")]
MemoryOrNone = Annotated[
    int,
    BeforeValidator(lambda value: quantity.memory(value, least=0)),
    _text(rf"\s*{NUMBER}\s*{SIZE}\s*", "4GiB", "0B"),
]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=NAME)]

EXAMPLES = {"wheel": "NAME", "hf": "DIR", "gguf": "FILE", "onnx": "FILE", "torch": "MODULE:FACTORY"}
SOURCES = {"llm": ("wheel", "hf", "gguf"), "onnx": ("wheel", "hf", "onnx", "torch")}  # kind -> schemes of `source`


def _checked_source(kind: str, text: object) -> object:
    scheme, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if scheme not in SOURCES[kind] or not rest:
        allowed = ", ".join(f"{scheme}:{EXAMPLES[scheme]}" for scheme in SOURCES[kind])
        raise ValueError(f"{show(text)} is not allowed; {' or '.join(allowed.rsplit(', ', 1))}")
    return text


LlmSource = Annotated[
    str, BeforeValidator(lambda text: _checked_source("llm", text)), _text(rf"({'|'.join(SOURCES['llm'])}):[^\n]+")
]
OnnxSource = Annotated[
    str, BeforeValidator(lambda text: _checked_source("onnx", text)), _text(rf"({'|'.join(SOURCES['onnx'])}):[^\n]+")
]


class Section(BaseModel):
    """A part of the file: unknown keys are errors, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
