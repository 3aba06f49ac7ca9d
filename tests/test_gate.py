"""The accuracy gate beside the same sums written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders.errors import BuildError
from builders.gate import Outputs, damage, judge
from config_gen.sla.spec import Accuracy

RANDOM = np.random.default_rng(0)
WANTED: Outputs = [{"y": RANDOM.standard_normal((rows, 3, 2)).astype(np.float32)} for rows in (4, 4, 2)]
GOT: Outputs = [
    {"y": batch["y"] + 0.2 * RANDOM.standard_normal(batch["y"].shape).astype(np.float32)} for batch in WANTED
]
ITEMS = [(a, b) for left, right in zip(WANTED, GOT, strict=True) for a, b in zip(left["y"], right["y"], strict=True)]


def flat_cosine(a: Any, b: Any) -> float:
    x, y = [float(v) for v in a.ravel()], [float(v) for v in b.ravel()]
    dot = sum(p * q for p, q in zip(x, y, strict=True))
    return dot / (sum(p * p for p in x) ** 0.5 * sum(q * q for q in y) ** 0.5)


BY_HAND = {
    "cosine": [flat_cosine(a, b) for a, b in ITEMS],
    "top1": [float(np.argmax(a.ravel()) == np.argmax(b.ravel())) for a, b in ITEMS],
    "max_abs_error": [max(abs(float(p) - float(q)) for p, q in zip(a.flat, b.flat, strict=True)) for a, b in ITEMS],
}


@pytest.mark.parametrize("metric", BY_HAND)
def test_a_metric_is_what_it_says_of_every_item(metric: str) -> None:
    bound = {"max": 100.0} if metric == "max_abs_error" else {"min": 0.0 if metric == "top1" else -1.0}
    score = judge(Accuracy(metric=metric, **bound), WANTED, GOT)
    values = BY_HAND[metric]
    worst = max(values) if metric == "max_abs_error" else min(values)
    assert (score.items, score.passed) == (10, True)
    assert score.mean == pytest.approx(sum(values) / 10, rel=1e-5)
    assert score.worst == pytest.approx(worst, rel=1e-5)


MEAN, WORST = float(np.mean(BY_HAND["cosine"])), min(BY_HAND["cosine"])
LARGEST, AGREED = max(BY_HAND["max_abs_error"]), float(np.mean(BY_HAND["top1"]))


@pytest.mark.parametrize(
    ("accuracy", "complaint"),
    [
        ({"metric": "cosine", "min": MEAN - 1e-4}, ""),
        ({"metric": "cosine", "min": MEAN + 1e-4}, f"mean {MEAN:.4f}, at least {MEAN + 1e-4:g} is promised"),
        ({"metric": "cosine", "min": 0.1, "worst": WORST - 1e-4}, ""),
        ({"metric": "cosine", "min": 0.1, "worst": WORST + 1e-4}, f"worst {WORST:.4f}, at least"),
        ({"metric": "top1", "min": AGREED}, ""),
        ({"metric": "top1", "min": AGREED + 0.01}, f"mean {AGREED:.4f}, at least"),
        ({"metric": "max_abs_error", "max": LARGEST * 1.01}, ""),
        ({"metric": "max_abs_error", "max": LARGEST * 0.99}, f"largest {LARGEST:.4g}, at most"),
    ],
)
def test_a_bound_is_kept_or_named(accuracy: dict[str, Any], complaint: str) -> None:
    score = judge(Accuracy(**accuracy), WANTED, GOT)
    assert score.passed == (not complaint)
    assert score.reason.startswith(complaint) and bool(score.reason) == bool(complaint)


@pytest.mark.parametrize("metric", BY_HAND)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_output_that_is_not_a_number_fails_whatever_the_metric_says(metric: str, value: float) -> None:
    bad = [{"y": batch["y"].copy()} for batch in GOT]
    bad[1]["y"][2, 1, 0] = value
    bound = {"max": 1e9} if metric == "max_abs_error" else {"min": 0.0 if metric == "top1" else -1.0}
    score = judge(Accuracy(metric=metric, **bound), WANTED, bad)
    assert not score.passed and score.reason == "an output is NaN or infinite"
    assert score.mean is score.worst is None


@pytest.mark.parametrize("metric", BY_HAND)
def test_a_reference_that_is_not_a_number_fails_too(metric: str) -> None:
    bad = [{"y": batch["y"].copy()} for batch in WANTED]
    bad[0]["y"][0, 0, 0] = np.nan
    bound = {"max": 1e9} if metric == "max_abs_error" else {"min": 0.0 if metric == "top1" else -1.0}
    score = judge(Accuracy(metric=metric, **bound), bad, GOT)
    assert score.reason == "an output in fp32 is NaN or infinite" and score.mean is None


def test_rows_of_zeros_agree_with_each_other_only() -> None:
    zeros, ones = [{"y": np.zeros((2, 3), np.float32)}], [{"y": np.ones((2, 3), np.float32)}]
    wanted = Accuracy(metric="cosine", min=0.99)
    assert judge(wanted, zeros, zeros).mean == 1.0
    assert judge(wanted, zeros, ones).mean == judge(wanted, ones, zeros).mean == 0.0


def test_of_several_outputs_the_worse_one_counts_for_each_item() -> None:
    wanted = [{"a": np.eye(3, dtype=np.float32), "b": np.eye(3, dtype=np.float32)}]
    got = [{"a": np.eye(3, dtype=np.float32), "b": np.eye(3, dtype=np.float32)}]
    got[0]["a"][0] = (0, 2, 0)  # item 0 is wrong in a, item 1 in b
    got[0]["b"][1] = (5, 0, 0)
    assert judge(Accuracy(metric="top1", min=0.5), wanted, got).mean == pytest.approx(1 / 3)
    assert judge(Accuracy(metric="cosine", min=0.5), wanted, got).mean == pytest.approx(1 / 3)
    score = judge(Accuracy(metric="max_abs_error", max=9), wanted, got)
    assert (score.mean, score.worst) == (pytest.approx((2 + 5 + 0) / 3), 5.0)


def mean_difference(wanted: Any, got: Any) -> Any:
    return 1 - np.abs(wanted["y"] - got["y"]).mean(axis=(1, 2))


def one_number(wanted: Any, got: Any) -> float:
    return 1.0


def broken(wanted: Any, got: Any) -> Any:
    return wanted["z"]


def no_number(wanted: Any, got: Any) -> Any:
    return np.full(len(wanted["y"]), np.nan)


PI = 3


def test_a_metric_of_the_users_gets_both_outputs_and_gives_a_number_an_item() -> None:
    by_hand = [1 - float(np.mean(np.abs(a - b))) for a, b in ITEMS]
    score = judge(Accuracy(metric="test_gate:mean_difference", min=0.5), WANTED, GOT)
    assert score.mean == pytest.approx(sum(by_hand) / 10, rel=1e-5) and score.worst == pytest.approx(min(by_hand))
    assert score.passed
    worst = Accuracy(metric="test_gate:mean_difference", min=0.5, worst=min(by_hand) + 1e-3)
    assert judge(worst, WANTED, GOT).reason.startswith("worst ")
    assert judge(Accuracy(metric="test_gate:no_number", min=0.5), WANTED, GOT).reason.endswith("is not a number")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("test_gate:one_number", "returned []; allowed: a number an item, [4]"),
        ("test_gate:broken", "KeyError: 'z'"),
        ("test_gate:absent", "test_gate has no absent"),
        ("no_such_module:f", "no_such_module cannot be imported"),
        ("test_gate:PI", "is a int"),
    ],
)
def test_a_metric_of_the_users_that_cannot_be_used_is_named(name: str, told: str) -> None:
    with pytest.raises(BuildError) as caught:
        judge(Accuracy(metric=name, min=0.5), WANTED, GOT)
    assert told in str(caught.value) and str(caught.value).startswith("accuracy.metric: ")


def test_damage_is_squared_error_over_squared_size_of_everything() -> None:
    error = sum(float(p - q) ** 2 for a, b in ITEMS for p, q in zip(a.flat, b.flat, strict=True))
    size = sum(float(p) ** 2 for a, _ in ITEMS for p in a.flat)
    assert damage(WANTED, GOT) == pytest.approx(error / size, rel=1e-5)
    assert damage(WANTED, WANTED) == 0.0
