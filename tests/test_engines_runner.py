"""The runner: a batch gives what its items give alone, padding changes nothing, and what is wrong fails alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_models import (
    MEAN,
    STD,
    array_engine,
    minilm,
    picture_engine,
    picture_graph,
    stamped,
    summed,
    text_engine,
)
from numpy.typing import NDArray

import engines.runner
from engines.errors import EngineError, ItemError
from engines.runner import Runner, bucket
from engines.session import open_session
from engines.stamp import Feed

TEXTS = ["the lazy dog", "", "a quick brown fox jumps over the lazy dog", "unknown words"]
BUCKETS = {"batch_buckets": (1, 2, 4), "length_buckets": (4, 8, 12)}


class Recording:
    """A real session that remembers the shapes it was given."""

    def __init__(self, stamp: Any, folder: Path) -> None:
        self._session = open_session(stamp, folder)
        self.shapes: list[dict[str, tuple[int, ...]]] = []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.shapes.append({name: array.shape for name, array in inputs.items()})
        return self._session.run(inputs)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it with a folder: a runner, and the shapes that its session has seen since it was warm."""

    def make(folder: Path) -> tuple[Runner, list[dict[str, tuple[int, ...]]], list[dict[str, tuple[int, ...]]]]:
        sessions: list[Recording] = []

        def remember(stamp: Any, where: Path, threads: int) -> Recording:
            sessions.append(Recording(stamp, where))
            return sessions[0]

        monkeypatch.setattr(engines.runner, "open_session", remember)
        runner = Runner(folder)
        warm, sessions[0].shapes = sessions[0].shapes, []
        return runner, warm, sessions[0].shapes

    return make


@pytest.mark.parametrize("buckets", [{}, BUCKETS])
def test_a_batch_of_texts_gives_what_numpy_says(tmp_path: Path, buckets: dict[str, Any]) -> None:
    results = Runner(text_engine(tmp_path, **buckets)).run(TEXTS)
    for text, result in zip(TEXTS, results, strict=True):
        assert isinstance(result, dict) and result["sum"].shape == (1, 4)
        np.testing.assert_allclose(result["sum"][0], summed(text), rtol=1e-5, atol=1e-5)


def test_real_embeddings_of_a_mixed_batch_are_those_of_single_runs() -> None:
    runner = Runner(minilm())
    texts = ["short", "a somewhat longer sentence about cats", "word " * 100, "Ünïcödé 日本", "", "word " * 500]
    together = runner.run(texts)
    for text, result in zip(texts, together, strict=True):
        [alone] = runner.run([text])
        assert isinstance(result, dict) and isinstance(alone, dict)
        np.testing.assert_allclose(result["sentence_embedding"], alone["sentence_embedding"], atol=2e-5)
        assert float((result["sentence_embedding"] * alone["sentence_embedding"]).sum()) > 0.99999


def test_the_session_sees_buckets_where_there_are_some(tmp_path: Path, recorded: Any) -> None:
    runner, warm, shapes = recorded(text_engine(tmp_path, **BUCKETS))
    expected = {(rows, length) for rows in (1, 2, 4) for length in (4, 8, 12)}
    assert {shape["input_ids"] for shape in warm} == expected  # none is met for the first time later
    runner.run(["dog"])
    runner.run(["dog", "a fox jumps over", "dog"])
    runner.run(["the " * 50, b"\xff"])
    runner.run([TEXTS[2]] * 2)
    assert [shape["input_ids"] for shape in shapes] == [(1, 4), (4, 8), (1, 12), (2, 12)]
    assert all(shape["attention_mask"] == shape["input_ids"] for shape in shapes)


def test_without_buckets_a_batch_is_as_long_as_its_longest_text(tmp_path: Path, recorded: Any) -> None:
    runner, warm, shapes = recorded(text_engine(tmp_path))
    assert {shape["input_ids"] for shape in warm} == {(1, 1), (1, 12), (4, 1), (4, 12), (1, 9)}  # and a text of its own
    runner.run(["dog", "a fox jumps over", "dog"])
    assert [shape["input_ids"] for shape in shapes] == [(3, 6)]


@pytest.mark.parametrize("buckets", [{}, {"batch_buckets": (1, 4)}])
def test_arrays_and_all_their_outputs(tmp_path: Path, recorded: Any, buckets: dict[str, Any]) -> None:
    runner, _, shapes = recorded(array_engine(tmp_path, **buckets))
    items = [{"a": np.full(3, at, np.float32), "b": np.arange(at, at + 2)} for at in range(3)]
    results = runner.run(items)
    assert [shape["a"][0] for shape in shapes] == [4 if buckets else 3]
    for at, result in enumerate(results):
        assert result["total"].tolist() == [[at + (at + at + 1)] * 3]
        assert result["twice"].tolist() == [[2 * at, 2 * at + 2]]
        assert result["twice"].dtype == np.int64


@pytest.mark.parametrize("buckets", [{}, {"batch_buckets": (4,)}])
def test_pictures_are_normalized(tmp_path: Path, buckets: dict[str, Any]) -> None:
    colours = [(0, 50, 100), (255, 0, 7), (127, 128, 129)]
    items = [np.full((9, 12, 3), colour, np.uint8) for colour in colours]
    results = Runner(picture_engine(tmp_path, **buckets)).run(items)
    for colour, result in zip(colours, results, strict=True):
        assert isinstance(result, dict)
        wanted = [(value - mean) / std for value, mean, std in zip(colour, MEAN, STD, strict=True)]
        np.testing.assert_allclose(result["mean"][0], wanted, rtol=1e-4)


def test_pictures_are_cast_to_what_the_model_takes(tmp_path: Path) -> None:
    folder = stamped(tmp_path, picture_graph(8, half=True), Feed("image", size=8, mean=MEAN, std=STD))
    [result] = Runner(folder).run([np.full((9, 12, 3), (0, 50, 100), np.uint8)])
    assert isinstance(result, dict) and result["mean"].dtype == np.float16
    np.testing.assert_allclose(result["mean"][0], [-5, 7.5, 8.75], rtol=1e-2)


def test_what_is_wrong_fails_alone_and_in_its_place(tmp_path: Path) -> None:
    runner = Runner(text_engine(tmp_path, **BUCKETS))
    first, second, third, fourth = runner.run(["dog", b"\xff\xff", 7, "the fox"])
    assert "byte 0 is not UTF-8" in str(second) and "is a int" in str(third)
    assert isinstance(second, ItemError) and isinstance(third, ItemError)
    for result, text in ((first, "dog"), (fourth, "the fox")):
        np.testing.assert_allclose(result["sum"][0], summed(text), rtol=1e-5, atol=1e-5)  # type: ignore[call-overload]


def test_when_all_are_wrong_nothing_is_computed(tmp_path: Path, recorded: Any) -> None:
    runner, _, shapes = recorded(text_engine(tmp_path))
    results = runner.run([b"\xff", 7])
    assert [type(result) for result in results] == [ItemError, ItemError] and shapes == []
    assert runner.run([]) == []


def test_too_many_items_are_refused_before_they_are_computed(tmp_path: Path, recorded: Any) -> None:
    runner, _, shapes = recorded(text_engine(tmp_path, **BUCKETS))
    with pytest.raises(EngineError, match="a batch of 5; allowed: at most 4"):
        runner.run(["dog"] * 5)
    assert shapes == []
    assert len(runner.run(["dog"] * 4)) == 4


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"a": np.zeros(3, np.float32)}, "b: is missing; allowed: int64 [-1]"),
        ({"a": np.zeros(3), "b": np.zeros(2, np.int64)}, "a: is float64 [3]; allowed: float32 [3]"),
        ({"a": np.zeros(4, np.float32), "b": np.zeros(2, np.int64)}, "a: is float32 [4]; allowed: float32 [3]"),
        ({"a": np.zeros((1, 3), np.float32), "b": np.zeros(2, np.int64)}, "a: is float32 [1, 3]; allowed: float32 [3]"),
        ({"a": np.zeros(3, np.float32), "b": [1, 2]}, "b: is missing; allowed: int64 [-1]"),
        ("text", "is a str; allowed: an array for each input"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, item: Any, told: str) -> None:
    good = {"a": np.ones(3, np.float32), "b": np.ones(2, np.int64)}
    wrong, right = Runner(array_engine(tmp_path)).run([item, good])
    assert isinstance(wrong, ItemError) and str(wrong) == told
    assert isinstance(right, dict) and right["total"].tolist() == [[3, 3, 3]]


def test_arrays_of_two_lengths_in_one_batch_are_refused(tmp_path: Path) -> None:
    """Triton's batcher puts equal shapes together only; whoever calls the runner otherwise is told."""
    items = [{"a": np.ones(3, np.float32), "b": np.ones(n, np.int64)} for n in (2, 5)]
    with pytest.raises(EngineError, match="b: shapes differ within a batch"):
        Runner(array_engine(tmp_path)).run(items)


def test_a_bucket_is_the_smallest_that_holds_it() -> None:
    buckets = (1, 2, 4, 8, 12)
    for count in range(1, 13):
        assert bucket(count, buckets) == min(b for b in buckets if b >= count)
    assert bucket(13, buckets) == 13 and bucket(5, ()) == 5


def test_a_runner_does_not_start_on_a_stale_engine(tmp_path: Path) -> None:
    folder = array_engine(tmp_path)
    (folder / "model.onnx").write_bytes(b"other")
    with pytest.raises(EngineError, match="is not the file that was built; rebuild: gapless build tiny"):
        Runner(folder)
