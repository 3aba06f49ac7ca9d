"""The SLA file: what a user promises, for which models, under which traffic. Read and checked here, frozen afterwards.

Every mistake is reported at once, one line each: path, value, what is allowed. Quantities carry units.
Must not know torch, sockets, Triton or how anything is derived from the spec.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import ErrorDetails

from config_gen import quantity

_REPR = reprlib.Repr()  # cuts while it writes
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlong = 3, 80, 80, 80


class SpecError(ValueError):
    """An SLA file that cannot be used; one line per mistake."""

    exit_status = 2


def _text(pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


Duration = Annotated[int, BeforeValidator(quantity.duration), _text(r"^[\d.]+\s*(ns|us|ms|s|m|min|h)$", "300ms")]
Rate = Annotated[float, BeforeValidator(quantity.rate), _text(r"^[\d.]+\s*/(s|m|min|h)$", "8/s")]
Share = Annotated[float, BeforeValidator(quantity.share), _text(r"^[\d.]+\s*%$", "40%")]
Percentile = Annotated[Fraction, BeforeValidator(quantity.percentile), _text(r"^p[\d.]+$", "p99")]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
DEEPEST = 20  # levels of a file; a spec has five
LARGEST = 2**63  # of a whole number, whatever its base


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
    source: Annotated[str, Field(pattern=r"^(wheel|hf|gguf):.+$")]
    weights: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    max_model_len: Count = 4096
    targets: dict[str, Targets] = {}
    traffic: dict[str, LlmTraffic] = {}


class Spec(Section):
    """The whole file, checked."""

    gapless: Annotated[int, Field(strict=True, ge=1, le=1)]  # version of the format
    hardware: Hardware = Hardware()
    tiers: Annotated[dict[str, Tier], Field(min_length=1)]
    models: Annotated[dict[str, LlmModel], Field(min_length=1)]


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
    raw, repeated = _read_yaml(text)
    mistakes = repeated
    spec = None
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        mistakes = mistakes + _describe_all(error.errors(include_url=False))
    mistakes = mistakes + _undeclared_tiers(raw)
    if spec is None or mistakes:
        raise SpecError("\n".join(" ".join(mistake.splitlines()) for mistake in mistakes))
    return spec


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
            problem = f"{_show(node.value)} is not a {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                self.repeated.append(
                    f"line {key.start_mark.line + 1}: key '{_cut(name)}' is given twice; allowed: once"
                )
            seen.add(name)
        pairs: dict[Any, Any] = super().construct_mapping(node, deep=True)
        return pairs


def _read_yaml(text: str) -> tuple[dict[str, Any], list[str]]:
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
        raise SpecError(f"the file holds {_show(raw)}; allowed: a mapping with the keys {', '.join(Spec.model_fields)}")
    return raw, loader.repeated


def _undeclared_tiers(raw: Mapping[str, Any]) -> list[str]:
    """Checked on the raw data, so that these mistakes are told together with those of form."""
    declared = raw.get("tiers")
    models = raw.get("models")
    if not isinstance(declared, dict) or not isinstance(models, dict):
        return []
    return [
        f"models.{_cut(str(name))}.{section}.{_cut(str(tier))}: tier '{_cut(str(tier))}' is not declared; "
        f"allowed: {', '.join(_cut(str(t)) for t in declared)}"
        for name, model in models.items()
        if isinstance(model, dict)
        for section in ("targets", "traffic")
        if isinstance(model.get(section), dict)
        for tier in model[section]
        if tier not in declared
    ]


def _describe_all(errors: list[ErrorDetails]) -> list[str]:
    """One line per mistake. Of a model of another kind only the kind is told: its keys are not ours to judge."""
    foreign = {error["loc"][:-1] for error in errors if error["type"] == "literal_error" and error["loc"][-1] == "kind"}
    told = [e for e in errors if e["loc"][-1:] == ("kind",) or not any(e["loc"][: len(f)] == f for f in foreign)]
    return [_describe(error) for error in told]


def _describe(error: ErrorDetails) -> str:
    path = ".".join(_cut(str(part)) for part in error["loc"]) or "the file"
    value, context = _show(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"{path}: is missing; it is required"
        case "extra_forbidden":
            return f"{path}: unknown key; allowed: {', '.join(_keys_at(error['loc'][:-1]))}"
        case "value_error":
            return f"{path}: {context['error']}"
        case "literal_error":
            return f"{path}: {value} is not allowed; {context['expected']}"
        case "string_pattern_mismatch":
            return f"{path}: {value} is not allowed; wheel:NAME, hf:DIR or gguf:FILE"
        case "too_short":
            return f"{path}: is empty; at least one is needed"
        case "model_type":
            return f"{path}: {value} is not allowed; a mapping with the keys {', '.join(_keys_at(error['loc']))}"
        case _:
            return f"{path}: {value} is not allowed; {error['msg'].removeprefix('Input should be ')}"


def _keys_at(path: tuple[int | str, ...]) -> list[str]:
    """The keys allowed in the section at `path`, found by walking the declarations."""
    at: Any = Spec
    for step in path:
        if isinstance(at, type) and issubclass(at, Section):
            at = at.model_fields[str(step)].annotation
        else:  # dict[str, section] or tuple[section, ...]
            at = next(a for a in get_args(at) if isinstance(a, type) and issubclass(a, Section))
    return list(at.model_fields)


def _show(value: object) -> str:
    return _cut(_REPR.repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
