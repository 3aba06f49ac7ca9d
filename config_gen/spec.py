"""The SLA file: what a user promises, for which models, under which traffic. Read and checked here, frozen afterwards.

Every mistake is reported at once, one line each: path, value, what is allowed. Quantities carry units.
Must not know torch, sockets, Triton or how anything is derived from the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import ErrorDetails

from config_gen import quantity
from config_gen.sla_text import SpecError, cut, read_mapping, show

__all__ = ["SpecError", "load", "parse"]  # and every section below


def _text(pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


Duration = Annotated[int, BeforeValidator(quantity.duration), _text(r"^[\d.]+\s*(ns|us|ms|s|m|min|h)$", "300ms")]
Rate = Annotated[float, BeforeValidator(quantity.rate), _text(r"^[\d.]+\s*/(s|m|min|h)$", "8/s")]
Share = Annotated[float, BeforeValidator(quantity.share), _text(r"^[\d.]+\s*%$", "40%")]
Percentile = Annotated[Fraction, BeforeValidator(quantity.percentile), _text(r"^p[\d.]+$", "p99")]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Memory = Annotated[int, BeforeValidator(quantity.memory), _text(r"^[\d.]+\s*(B|[KMGT]iB|[kMGT]B)$", "2GiB")]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # of a model: a folder, a part of an address, a label
METRIC = r"^(cosine|top1|max_abs_error|[\w.]+:\w+)$"
CAPABILITY = r"^\d{1,2}\.\d$"
ALLOWED = {
    NAME: "letters, digits and . _ -, at most 64",
    METRIC: "cosine, top1, max_abs_error or module:callable",
    CAPABILITY: "a compute capability such as '8.9'",
}
EXAMPLES = {"wheel": "NAME", "hf": "DIR", "gguf": "FILE", "onnx": "FILE", "torch": "MODULE:FACTORY"}
SOURCES = {"llm": ("wheel", "hf", "gguf"), "onnx": ("wheel", "hf", "onnx", "torch")}  # kind -> schemes of `source`


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
    source: Annotated[str, BeforeValidator(lambda text: _source("llm", text))]
    weights: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    max_model_len: Count = 4096
    targets: dict[str, Targets] = {}
    traffic: dict[str, LlmTraffic] = {}


class Accuracy(Section):
    """What an engine must keep of the model in fp32, item by item on data that nothing was fitted to.

    `cosine` of the outputs: mean at least `min`, of every item at least `worst`. `top1`: the share of items with the
    same largest output is at least `min`. `max_abs_error`: at most `max`. `module:callable` gets both outputs (first
    axis: items) and returns one number per item: mean at least `min`, every item at least `worst`.
    """

    metric: Annotated[str, Field(pattern=METRIC)]
    min: Annotated[float, Field(allow_inf_nan=False)] | None = None
    worst: Annotated[float, Field(allow_inf_nan=False)] | None = None
    max: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _has_its_bound(self) -> Accuracy:
        wanted = {"max_abs_error": ({"max"}, set[str]()), "top1": ({"min"}, set[str]())}
        needed, more = wanted.get(self.metric, ({"min"}, {"worst"}))
        given = {name for name in ("min", "worst", "max") if getattr(self, name) is not None}
        if not needed <= given <= needed | more:
            allowed = ", ".join(sorted(needed | more))
            raise ValueError(
                f"metric {self.metric} has the bounds {', '.join(sorted(given)) or 'none'}; allowed: {allowed}"
            )
        return self


class Picture(Section):
    """How a picture becomes a model's input: `size` pixels square, each channel (value - mean) / std, of 0 to 255."""

    size: Annotated[int, Field(strict=True, ge=8, le=4096)]
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (255.0, 255.0, 255.0)


class Engine(Section):
    """What runs the model, and how TensorRT compiles it.

    `auto`: TensorRT where the machine has a GPU and one of its flavours, else onnxruntime.
    """

    runtime: Literal["auto", "onnxruntime", "tensorrt", "tensorrt_rtx"] = "auto"
    compute_capability: tuple[Annotated[str, Field(pattern=CAPABILITY)], ...] = ()  # (): of the GPU here
    workspace: Memory | None = None
    tf32: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False


class OnnxTraffic(Section):
    """What one tier sends to a model that answers in one piece. Texts have a `length` in tokens."""

    rate: Rate
    length: Lengths | None = None


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Data = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_list)]


class OnnxModel(Section):
    """Any batchable model: text encoder, picture classifier, arrays in and out.

    `calibration` (for ranges) and `evaluation` (for the gate) name data, one or a list: a file .npz or .txt, a folder
    of pictures, wheel:NAME or wheel:NAME/PATTERN (pictures inside a package), module:callable. Without `evaluation`
    the items of `calibration` are split.
    """

    kind: Literal["onnx"]
    source: Annotated[str, BeforeValidator(lambda text: _source("onnx", text))]
    precision: Literal["fp32", "fp16", "int8"] = "fp32"
    accuracy: Accuracy | None = None
    on_gate_failure: Literal["fallback", "fail"] = "fallback"
    calibration: Data = ()
    evaluation: Data = ()
    max_batch_size: Annotated[int, Field(strict=True, ge=1, le=1024)] = 32
    max_length: Annotated[int, Field(strict=True, ge=1, le=131072)] = 256  # tokens of a text; longer ones are cut
    tokenizer: str | None = None  # tokenizer.json of a source that brings none
    picture: Picture | None = None  # of a source that does not say
    engine: Engine = Engine()
    targets: dict[str, Targets] = {}
    traffic: dict[str, OnnxTraffic] = {}

    @model_validator(mode="after")
    def _fits_together(self) -> OnnxModel:
        if self.precision != "fp32" and self.accuracy is None:
            raise ValueError(f"accuracy is missing; precision {self.precision} needs a gate to pass")
        if self.precision != "fp32" and not self.calibration:
            raise ValueError(f"calibration is missing; precision {self.precision} needs data")
        if set(self.calibration) & set(self.evaluation):
            raise ValueError("evaluation names data of calibration; leave it out to split them")
        if self.tokenizer is not None and self.picture is not None:
            raise ValueError("tokenizer and picture are both given; a model takes texts or pictures")
        for tier, promised in self.targets.items():
            if promised.ttft is not None or promised.itl is not None:
                raise ValueError(f"targets.{tier}: a model of kind onnx answers in one piece; allowed: e2e, at")
        return self


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


def _source(kind: str, text: object) -> object:
    schemes = SOURCES[kind]
    scheme, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if scheme not in schemes or not rest:
        allowed = ", ".join(f"{scheme}:{EXAMPLES[scheme]}" for scheme in schemes)
        raise ValueError(f"{show(text)} is not allowed; {' or '.join(allowed.rsplit(', ', 1))}")
    return text


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
