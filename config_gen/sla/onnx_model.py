"""The section of a batchable model: its source, precision, the accuracy it must keep, its data, engine and traffic.

Must not know how a file is read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from config_gen.sla.fields import Delay, Flag, Memory, Number, OnnxSource, Rate, Section, Share
from config_gen.sla.sections import Lengths, Targets
from config_gen.sla.sla_text import show

METRIC = r"^(cosine|top1|max_abs_error|[\w.]+:\w+)$"
CAPABILITY = r"^\d{1,2}\.\d$"


class Accuracy(Section):
    """What an engine must keep of the model in fp32, item by item on data that nothing was fitted to.

    `cosine` of the outputs: mean at least `min`, of every item at least `worst`. `top1`: the share of items with the
    same largest output is at least `min`. `max_abs_error`: at most `max`. `module:callable` gets both outputs (first
    axis: items) and returns one number per item: mean at least `min`, every item at least `worst`.
    """

    metric: Annotated[str, Field(pattern=METRIC)]
    """cosine, top1, max_abs_error or module:callable."""
    min: Number | None = None
    """Least mean over all items."""
    worst: Number | None = None
    """Least of any item."""
    max: Annotated[Number, Field(gt=0)] | None = None
    """Most of any item."""

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
        lowest = {"cosine": -1, "top1": 0}.get(self.metric)
        for name in ("min", "worst"):
            bound = getattr(self, name)
            if lowest is not None and bound is not None and not lowest <= bound <= 1:
                raise ValueError(f"{name} {bound:g} is not allowed for {self.metric}; {lowest} to 1")
        return self


Mean = Annotated[Number, Field(ge=-1e6, le=1e6)]
Deviation = Annotated[Number, Field(ge=1e-6, le=1e6)]


class Image(Section):
    """How a picture becomes a model's input: `size` pixels square, each channel (value - mean) / std, of 0 to 255."""

    size: Annotated[int, Field(strict=True, ge=8, le=4096)]
    """Pixels on each side."""
    mean: tuple[Mean, Mean, Mean] = (0.0, 0.0, 0.0)
    """Of red, green and blue."""
    std: tuple[Deviation, Deviation, Deviation] = (255.0, 255.0, 255.0)
    """Of red, green and blue."""


class Engine(Section):
    """What runs the model, and how TensorRT compiles it.

    `auto`: TensorRT where the machine has a GPU and one of its flavours, else onnxruntime.
    """

    runtime: Literal["auto", "onnxruntime", "tensorrt", "tensorrt_rtx"] = "auto"
    """What runs it."""
    compute_capability: tuple[Annotated[str, Field(pattern=CAPABILITY)], ...] = ()
    """Of the GPUs that plans are compiled for, as '8.9'; without one, of the GPU here."""
    workspace: Memory | None = None
    """Of the card, that a kernel may use to compute."""
    tf32: Flag = False
    """Whether fp32 may be computed in TF32."""
    version_compatible: Flag = False
    """Whether later versions of TensorRT can load the plan."""
    hardware_compatible: Flag = False
    """Whether GPUs of other compute capabilities can."""


class OnnxTraffic(Section):
    """What one tier sends to a model that answers in one piece."""

    rate: Rate
    """Requests per second, a Poisson process."""
    length: Lengths | None = None
    """Of texts."""


class ResponseCache(Section):
    """Answers that are kept for those who ask the same again."""

    repeats: Share
    """Share of the requests that ask what was asked before."""
    size: Memory = 64 * 2**20
    """Of the host; 64MiB unless it is given."""


def _as_list(value: object) -> object:
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"{show(value)} is not allowed; one text or a list of them")
    return (value,) if isinstance(value, str) else value


def _in_one_piece(promised: Targets) -> Targets:
    if promised.ttft is not None or promised.itl is not None:
        raise ValueError("a model of kind onnx answers in one piece; allowed: e2e, at")
    return promised


_ONE = {"type": "string", "minLength": 1}


def _has_what_is_sent(traffic: OnnxTraffic, info: ValidationInfo) -> OnnxTraffic:
    if traffic.length is not None and info.data.get("image") is not None:
        raise ValueError("length is given, and the model takes pictures; allowed: rate")
    return traffic


Data = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [_ONE, {"type": "array", "items": _ONE}], "examples": ["wheel:scikit-learn", "data.npz"]}),
]
SERVING = ("targets", "traffic", "instances", "queue_delay", "response_cache")  # fields that no engine depends on


class OnnxModel(Section):
    """Any batchable model: text encoder, picture classifier, arrays in and out. What is not pinned is planned.

    `calibration` (for ranges) and `evaluation` (for the gate) name data, one or a list: a file .npz or .txt, a folder
    of pictures, wheel:NAME or wheel:NAME/PATTERN (pictures inside a package), module:callable. Without `evaluation`
    the items of `calibration` are split. Texts need neither: they have the sentences that load tests send.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"precision": {"enum": ["fp16", "int8"]}}, "required": ["precision"]},
            "then": {"required": ["accuracy"]},
        }
    )

    kind: Literal["onnx"]
    """Any batchable model: a request gets its answer in one piece."""
    source: OnnxSource
    """Where the weights or the graph are."""
    precision: Literal["fp32", "fp16", "int8"] = "fp32"
    """The best one to try; a lower one that is not worth its error is not taken."""
    accuracy: Annotated[Accuracy | None, Field(validate_default=True)] = None
    """The gate that a precision below fp32 must pass."""
    on_gate_failure: Literal["fallback", "fail"] = "fallback"
    """What happens where one does not: the next better precision is taken, or nothing is built."""
    calibration: Data = ()
    """Data that ranges are taken from: FILE.npz, FILE.txt, FOLDER, wheel:NAME[/PATTERN], MODULE:CALLABLE, or a list."""
    evaluation: Data = ()
    """Data for the gate; without any, the items of calibration are split."""
    max_batch_size: Annotated[int, Field(strict=True, ge=1, le=1024)] = 32
    """Most items computed at once."""
    max_length: Annotated[int, Field(strict=True, ge=1, le=131072)] = 256
    """Tokens of a text; longer ones are cut."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """tokenizer.json of a source that brings none."""
    image: Image | None = None
    """Of a source that does not say."""
    engine: Engine = Engine()
    """How it is compiled and run."""
    instances: Annotated[int, Field(strict=True, ge=1, le=256)] | None = None
    """Copies that compute beside each other, on each card or on the host."""
    queue_delay: Delay | None = None
    """How long a request may wait for others to be computed with."""
    response_cache: ResponseCache | None = None
    """None: every request is computed."""
    targets: dict[str, Annotated[Targets, AfterValidator(_in_one_piece)]] = Field(default_factory=dict)
    """What is promised, by tier."""
    traffic: dict[str, Annotated[OnnxTraffic, AfterValidator(_has_what_is_sent)]] = Field(default_factory=dict)
    """What is sent, by tier."""

    @field_validator("accuracy")
    @classmethod
    def _gates(cls, accuracy: Accuracy | None, info: ValidationInfo) -> Accuracy | None:
        precision = info.data.get("precision", "fp32")
        if accuracy is None and precision != "fp32":
            raise ValueError(f"is missing; precision {precision} needs a gate to pass")
        return accuracy

    @field_validator("evaluation")
    @classmethod
    def _evaluates(cls, data: Data, info: ValidationInfo) -> Data:
        ranges = info.data.get("calibration")
        if data and ranges == ():
            raise ValueError("is given without calibration; it goes with data that ranges are taken from")
        if ranges and set(data) & set(ranges):
            raise ValueError("names data of calibration; leave it out to split them")
        return data

    @field_validator("image")
    @classmethod
    def _takes_one_kind(cls, image: Image | None, info: ValidationInfo) -> Image | None:
        if image is not None and info.data.get("tokenizer") is not None:
            raise ValueError("is given beside tokenizer; a model takes texts or pictures")
        return image
