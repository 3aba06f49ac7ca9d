"""The accuracy gate: an engine's outputs beside those of the model in fp32, one value an item, and the verdict.

Must not know how an engine was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builders.errors import BuildError
from builders.users_code import load_callable, users_code
from config_gen.sla.spec import Accuracy
from engines.session import Arrays, Session

Outputs = list[dict[str, NDArray[Any]]]  # one dict a batch, first axis the items
Metric = Callable[[Arrays, Arrays], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Score:
    """`mean` and `worst` of the metric over all items; `reason` says what was wrong, or is empty."""

    metric: str
    items: int
    mean: float | None  # None: an output was not a number
    worst: float | None
    reason: str

    @property
    def passed(self) -> bool:
        return not self.reason


def outputs_of(session: Session, feeds: Sequence[Arrays]) -> Outputs:
    """What a session computes of each batch."""
    return [session.run(feed) for feed in feeds]


def judge(accuracy: Accuracy, reference: Outputs, candidate: Outputs) -> Score:
    """The verdict on a candidate. Raises BuildError when a metric of the user's cannot be used."""
    metric = _metric(accuracy.metric)
    for outputs, whose in ((reference, "an output in fp32"), (candidate, "an output")):
        if not all(np.isfinite(array).all() for batch in outputs for array in batch.values()):
            count = sum(len(next(iter(batch.values()))) for batch in candidate)
            return Score(accuracy.metric, count, None, None, f"{whose} is NaN or infinite")
    values = np.concatenate([metric(wanted, got) for wanted, got in zip(reference, candidate, strict=True)])
    lower = accuracy.metric == "max_abs_error"  # is better
    mean, worst = float(values.mean()), float(values.max() if lower else values.min())
    return Score(accuracy.metric, len(values), mean, worst, _complaint(accuracy, mean, worst))


def _complaint(accuracy: Accuracy, mean: float, worst: float) -> str:
    if not (np.isfinite(mean) and np.isfinite(worst)):
        return f"{accuracy.metric} is not a number"
    if accuracy.min is not None and mean < accuracy.min:
        return f"mean {mean:.4f}, at least {accuracy.min:g} is promised"
    if accuracy.worst is not None and worst < accuracy.worst:
        return f"worst {worst:.4f}, at least {accuracy.worst:g} is promised"
    if accuracy.max is not None and worst > accuracy.max:
        return f"largest {worst:.4g}, at most {accuracy.max:g} is promised"
    return ""


def damage(reference: Outputs, candidate: Outputs) -> float:
    """Squared error over squared size of all outputs; finer than any metric, so that layers can be ranked by it."""
    error = sum(float(((a - b) ** 2).sum()) for a, b in _pairs(reference, candidate))
    size = sum(float((a**2).sum()) for a, _ in _pairs(reference, candidate))
    return error / max(size, 1e-30)


def _pairs(reference: Outputs, candidate: Outputs) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    for wanted, got in zip(reference, candidate, strict=True):
        for name, array in wanted.items():
            yield array.astype(np.float64), got[name].astype(np.float64)


def _metric(name: str) -> Metric:
    if name in METRICS:
        one, combine = METRICS[name]
        return lambda wanted, got: combine([one(_flat(wanted[key]), _flat(got[key])) for key in wanted], axis=0)
    found = load_callable(name, "accuracy.metric")

    def asked(wanted: Arrays, got: Arrays) -> NDArray[np.float64]:
        with users_code(f"accuracy.metric: {name}"):
            values = np.asarray(found(dict(wanted), dict(got)), np.float64)
        rows = len(next(iter(wanted.values())))
        if values.shape != (rows,):
            raise BuildError(
                f"accuracy.metric: {name} returned {list(values.shape)}; allowed: a number an item, [{rows}]"
            )
        return values

    return asked


def _flat(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.reshape(len(array), -1).astype(np.float64)


def cosine(wanted: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row; two rows of zeros agree, zeros and anything else do not."""
    sizes = np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1)
    same = (np.abs(wanted - got).max(axis=1) == 0).astype(np.float64)
    return np.where(sizes > 0, (wanted * got).sum(1) / np.where(sizes > 0, sizes, 1), same)


def top1(wanted: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 where the largest output of a row is the same, else 0."""
    return np.asarray(wanted.argmax(1) == got.argmax(1), np.float64)


def max_abs_error(wanted: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest difference in each row."""
    return np.asarray(np.abs(wanted - got).max(axis=1), np.float64)


METRICS: dict[str, tuple[Any, Any]] = {  # of one output, and over several outputs
    "cosine": (cosine, np.min),
    "top1": (top1, np.min),
    "max_abs_error": (max_abs_error, np.max),
}
