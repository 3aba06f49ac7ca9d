"""The section of a batchable model: its source, precision, the accuracy it must keep, its data, engine and traffic.

Must not know how a file is read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from config_gen.sections import Lengths, Memory, Rate, Section, Targets, checked_source

METRIC = r"^(cosine|top1|max_abs_error|[\w.]+:\w+)$"
CAPABILITY = r"^\d{1,2}\.\d$"


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
        lowest = {"cosine": -1, "top1": 0}.get(self.metric)
        for name in ("min", "worst"):
            bound = getattr(self, name)
            if lowest is not None and bound is not None and not lowest <= bound <= 1:
                raise ValueError(f"{name} {bound:g} is not allowed for {self.metric}; {lowest} to 1")
        return self


Mean = Annotated[float, Field(ge=-1e6, le=1e6)]
Deviation = Annotated[float, Field(ge=1e-6, le=1e6)]


class Image(Section):
    """How a picture becomes a model's input: `size` pixels square, each channel (value - mean) / std, of 0 to 255."""

    size: Annotated[int, Field(strict=True, ge=8, le=4096)]
    mean: tuple[Mean, Mean, Mean] = (0.0, 0.0, 0.0)
    std: tuple[Deviation, Deviation, Deviation] = (255.0, 255.0, 255.0)


class Engine(Section):
    """What runs the model, and how TensorRT compiles it.

    `auto`: TensorRT where the machine has a GPU and one of its flavours, else onnxruntime.
    """

    runtime: Literal["auto", "onnxruntime", "tensorrt", "tensorrt_rtx"] = "auto"
    compute_capability: tuple[Annotated[str, Field(pattern=CAPABILITY)], ...] = ()  # (): of the GPU here
    workspace: Annotated[Memory, Field(le=2**50)] | None = None
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
    source: Annotated[str, BeforeValidator(lambda text: checked_source("onnx", text))]
    precision: Literal["fp32", "fp16", "int8"] = "fp32"
    accuracy: Accuracy | None = None
    on_gate_failure: Literal["fallback", "fail"] = "fallback"
    calibration: Data = ()
    evaluation: Data = ()
    max_batch_size: Annotated[int, Field(strict=True, ge=1, le=1024)] = 32
    max_length: Annotated[int, Field(strict=True, ge=1, le=131072)] = 256  # tokens of a text; longer ones are cut
    tokenizer: Annotated[str, Field(min_length=1)] | None = None  # tokenizer.json of a source that brings none
    image: Image | None = None  # of a source that does not say
    engine: Engine = Engine()
    targets: dict[str, Targets] = Field(default_factory=dict)
    traffic: dict[str, OnnxTraffic] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> OnnxModel:
        if self.precision != "fp32" and self.accuracy is None:
            raise ValueError(f"accuracy is missing; precision {self.precision} needs a gate to pass")
        if self.precision != "fp32" and not self.calibration:
            raise ValueError(f"calibration is missing; precision {self.precision} needs data")
        if self.evaluation and not self.calibration:
            raise ValueError("calibration is missing; evaluation goes with data that ranges are taken from")
        if set(self.calibration) & set(self.evaluation):
            raise ValueError("evaluation names data of calibration; leave it out to split them")
        if self.tokenizer is not None and self.image is not None:
            raise ValueError("tokenizer and image are both given; a model takes texts or pictures")
        for tier, promised in self.targets.items():
            if promised.ttft is not None or promised.itl is not None:
                raise ValueError(f"targets.{tier}: a model of kind onnx answers in one piece; allowed: e2e, at")
        return self
