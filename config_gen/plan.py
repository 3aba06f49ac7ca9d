"""What was planned for an SLA file: for each model its place and settings with reasons, and what each promise will get.

Data only; must not know how it was found, or how it is written as files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from config_gen.batching import Batching


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: its name as the file that holds it spells it, its value there, and why, in one line."""

    name: str  # dynamic_batching.max_queue_delay_microseconds, parameters.max_num_seqs, --rate-limit
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as Triton declares it: `data_type` TYPE_FP32 …, dims without the batch, -1 is any size."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class WarmUp:
    """One request that Triton sends to a new instance before it counts as ready; values are zeros (no text)."""

    batch_size: int
    inputs: tuple[Tensor, ...]  # of sizes that are all known


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model of the repository.

    `gpus`: ids of the cards that hold `instances` of it each; () is the CPU. A batchable model has `batching` (whose
    `instances` counts those of one place), an LLM has `parameters` of the decode loop and none.
    """

    name: str
    gpus: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batching: Batching | None = None
    parameters: Mapping[str, str] | None = None
    response_cache: bool = False
    warm_up: WarmUp | None = None
    rate_limit: Mapping[str, int] | None = None  # resource -> what one execution holds of it
    memory: int = 0  # bytes it takes of each card, or of the host
    knobs: tuple[Knob, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """One promise: `target`, `predicted` at the declared rates and `stressed` at those plus the headroom.

    In ns at percentile `q`; infinite where requests are refused or the device cannot keep up. `binding` says in a few
    words what most of the time goes to.
    """

    model: str
    tier: str
    metric: str  # ttft, itl, e2e
    q: Fraction
    target: int
    predicted: float
    stressed: float
    binding: str

    @property
    def held(self) -> bool:
        return max(self.predicted, self.stressed) <= self.target

    @property
    def margin(self) -> float:
        """Share of the target that is left; negative when it is missed."""
        return 1 - self.predicted / self.target


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a simulation at the declared rates saw of one tier, whether or not it has a target. ns; see Prediction."""

    model: str
    tier: str
    metric: str
    p50: float
    p99: float
    mean: float


@dataclass(frozen=True, slots=True)
class Plan:
    """`notes` say what to doubt of what it is made from. `expected` holds every tier that sends; `executing` the mean
    ns of an execution of each batchable model.

    `flags` are those of tritonserver. `advice` is empty when all targets are kept, else what would do, in lines.
    """

    models: tuple[ModelPlan, ...]
    predictions: tuple[Prediction, ...]
    cards: int
    flags: tuple[Knob, ...] = ()
    advice: tuple[str, ...] = ()
    expected: tuple[Expectation, ...] = ()
    executing: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return all(found.held for found in self.predictions)
