"""Sections of the SLA file that every kind of model shares, and those of an LLM. Quantities carry units.

Must not know how a file is read.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from config_gen import quantity
from config_gen.sla_text import show


def _text(pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


Duration = Annotated[int, BeforeValidator(quantity.duration), _text(r"^[\d.]+\s*(ns|us|ms|s|m|min|h)$", "300ms")]
Rate = Annotated[float, BeforeValidator(quantity.rate), _text(r"^[\d.]+\s*/(s|m|min|h)$", "8/s")]
Share = Annotated[float, BeforeValidator(quantity.share), _text(r"^[\d.]+\s*%$", "40%")]
Percentile = Annotated[Fraction, BeforeValidator(quantity.percentile), _text(r"^p[\d.]+$", "p99")]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Memory = Annotated[int, BeforeValidator(quantity.memory), _text(r"^[\d.]+\s*(B|[KMGT]iB|[kMGT]B)$", "2GiB")]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
EXAMPLES = {"wheel": "NAME", "hf": "DIR", "gguf": "FILE", "onnx": "FILE", "torch": "MODULE:FACTORY"}
SOURCES = {"llm": ("wheel", "hf", "gguf"), "onnx": ("wheel", "hf", "onnx", "torch")}  # kind -> schemes of `source`


def checked_source(kind: str, text: object) -> object:
    schemes = SOURCES[kind]
    scheme, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if scheme not in schemes or not rest:
        allowed = ", ".join(f"{scheme}:{EXAMPLES[scheme]}" for scheme in schemes)
        raise ValueError(f"{show(text)} is not allowed; {' or '.join(allowed.rsplit(', ', 1))}")
    return text


class Section(BaseModel):
    """A part of the file: unknown keys are errors, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Gpu(Section):
    type: str
    count: Count = 1


class Hardware(Section):
    """No GPUs means CPU."""

    gpus: tuple[Gpu, ...] = ()
    sharing: Literal["auto", "in-process", "mps", "mig", "time-slice"] = "auto"


class Tier(Section):
    """A traffic class. `queue_timeout` in ns; None means without end, and `max_queue` None without bound.

    It starts requests only while the load by other tiers is below `idle_below`, and runs at most `max_long` of those
    with more than `long_tokens` tokens (prompt and asked output) at once.
    """

    weight: Count = 1
    queue_timeout: Duration | None = None
    max_queue: Count | None = None
    idle_below: Share | None = None
    max_long: Count | None = None
    long_tokens: Count | None = None


class Targets(Section):
    """The promise to one tier, in ns at percentile `at`."""

    ttft: Duration | None = None
    itl: Duration | None = None
    e2e: Duration | None = None
    at: Percentile = Fraction(99, 100)

    @model_validator(mode="after")
    def _promises_something(self) -> Targets:
        if self.ttft is self.itl is self.e2e is None:
            raise ValueError("no target; give at least one of ttft, itl, e2e")
        return self


class Lengths(Section):
    """A lognormal length in tokens, given by two of its percentiles."""

    median: Count
    p95: Count

    @model_validator(mode="after")
    def _ordered(self) -> Lengths:
        if self.p95 < self.median:
            raise ValueError(f"p95 {self.p95} is below the median {self.median}; allowed: at least the median")
        return self


class LlmTraffic(Section):
    """What one tier sends: requests per second, tokens in and out.

    `prompt` is a request's own text; half of the requests have a common system prompt of `shared_prefix` tokens
    before it.
    """

    rate: Rate
    prompt: Lengths
    output: Lengths
    shared_prefix: Annotated[int, Field(strict=True, ge=0)] = 0


class LlmModel(Section):
    kind: Literal["llm"]
    source: Annotated[str, BeforeValidator(lambda text: checked_source("llm", text))]
    weights: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    max_model_len: Count = 4096
    targets: dict[str, Targets] = {}
    traffic: dict[str, LlmTraffic] = {}
