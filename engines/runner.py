"""From items to results: what Triton's batcher hands over is prepared, padded to a bucket, computed and split.

A batch is computed in one run, or in several of texts of about one length where that was measured to cost less.

An item that cannot be prepared fails alone. Must not know Triton.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from engines.errors import EngineError, ItemError
from engines.grouping import groups
from engines.session import Session, constant_inputs, open_session
from engines.stamp import Stamp, TensorSpec
from engines.texts import Texts

Result = dict[str, NDArray[Any]] | ItemError
WARM_RUNS = 2  # of each shape: the first one allocates


class Runner:
    """One engine, loaded and warm."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """On the CPU with so many threads, 0 is one for each core. Raises EngineError."""
        self.stamp = Stamp.read(folder)
        self._session = open_session(self.stamp, folder, threads)
        self.prepare = preparation(self.stamp, folder)
        warm_up(self.stamp, self._session)
        self.run([self.prepare.example()])  # tokenizer, decoder and copies, too

    def run(self, items: Sequence[object]) -> list[Result]:
        """Results in the order of the items, at most max_batch_size of them. Raises EngineError.

        An item is a text (str, bytes), a picture (bytes, uint8 array), or a mapping of input name to array.
        """
        prepared = self.prepare(items)
        good = [item for item in prepared if not isinstance(item, ItemError)]
        if not good:
            return [item for item in prepared if isinstance(item, ItemError)]
        results: list[Result] = [{}] * len(good)
        for group in self.prepare.groups(good):
            outputs = self._session.run(self.prepare.batch([good[at] for at in group]))
            for row, at in enumerate(group):
                results[at] = _row(outputs, row)
        computed = iter(results)
        return [item if isinstance(item, ItemError) else next(computed) for item in prepared]


def _row(outputs: Mapping[str, NDArray[Any]], row: int) -> dict[str, NDArray[Any]]:
    return {name: values[row : row + 1] for name, values in outputs.items()}


def warm_up(stamp: Stamp, session: Session) -> None:
    """Compute every shape that will be met where shapes are fixed, else the smallest and the largest."""
    lengths = stamp.length_buckets or ((1, stamp.feed.max_length) if stamp.feed.kind == "text" else (8,))
    for rows in stamp.batch_buckets or dict.fromkeys((1, stamp.max_batch_size)):
        for length in lengths:
            for _ in range(WARM_RUNS):
                session.run(constant_inputs(stamp.inputs, rows, length))


class Preparation(ABC):
    """Items of one kind to inputs."""

    measures_length = False  # of what `one` returns: its length is that of the input

    def __init__(self, stamp: Stamp) -> None:
        self._stamp = stamp

    def __call__(self, items: Sequence[object]) -> list[Any]:
        """What can be batched of each item, or the ItemError that says why nothing can."""
        found: list[Any] = []
        for item in items:
            try:
                found.append(self.one(item))
            except ItemError as error:
                found.append(error)
        return found

    @abstractmethod
    def one(self, item: object) -> Any:
        """What can be batched of one item. Raises ItemError."""

    @abstractmethod
    def example(self) -> object:
        """An item to warm up with."""

    @abstractmethod
    def batch(self, items: Sequence[Any]) -> dict[str, NDArray[Any]]:
        """Inputs of a whole batch, padded to its bucket. Raises EngineError when there are too many."""

    def groups(self, items: Sequence[Any]) -> list[list[int]]:
        """Positions of items that are computed together: all of them, unless several runs cost less."""
        return [list(range(len(items)))]

    def rows(self, count: int) -> int:
        """The bucket of a batch of `count`."""
        if count > self._stamp.max_batch_size:
            raise EngineError(f"a batch of {count}; allowed: at most {self._stamp.max_batch_size}")
        return bucket(count, self._stamp.batch_buckets)


def bucket(count: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `count`; itself where there are none."""
    at = bisect_left(buckets, count)
    return buckets[at] if at < len(buckets) else count


class TextPreparation(Preparation):
    measures_length = True

    def __init__(self, stamp: Stamp, folder: Path) -> None:
        super().__init__(stamp)
        names = [tensor.name for tensor in stamp.inputs]
        self._texts = Texts(folder / stamp.tokenizer, stamp.feed.max_length, names)

    def one(self, item: object) -> list[int]:
        return self._texts.encode(item)

    def example(self) -> str:
        return "A text to warm up with."

    def batch(self, items: Sequence[Any]) -> dict[str, NDArray[Any]]:
        length = bucket(max(len(ids) for ids in items), self._stamp.length_buckets)
        return dict(self._texts.batch(items, self.rows(len(items)), length))

    def groups(self, items: Sequence[Any]) -> list[list[int]]:
        if self._stamp.run_cost is None:
            return super().groups(items)
        fixed, per_token = self._stamp.run_cost
        lengths = [bucket(len(ids), self._stamp.length_buckets) for ids in items]
        return groups(lengths, lambda rows, longest: fixed + per_token * self.rows(rows) * longest)


class PicturePreparation(Preparation):
    def __init__(self, stamp: Stamp, on_gpu: bool) -> None:
        super().__init__(stamp)
        if on_gpu:
            from engines.cuda_pictures import CudaPictures

            self._pictures: Any = CudaPictures(stamp.feed)
        else:
            from engines.pictures import Pictures

            self._pictures = Pictures(stamp.feed)

    def __call__(self, items: Sequence[object]) -> list[Any]:
        """All at once: they are decoded by several threads."""
        return list(self._pictures.prepare(items))

    def one(self, item: object) -> Any:
        [prepared] = self([item])
        if isinstance(prepared, ItemError):
            raise prepared
        return prepared

    def example(self) -> bytes:
        data = io.BytesIO()
        Image.new("RGB", (2 * self._stamp.feed.size,) * 2).save(data, "JPEG")
        return data.getvalue()

    def batch(self, items: Sequence[Any]) -> dict[str, NDArray[Any]]:
        (tensor,) = self._stamp.inputs
        made = self._pictures.batch(items, self.rows(len(items)))
        # A tensor is cast where it is copied to.
        return {tensor.name: made.astype(tensor.dtype, copy=False) if isinstance(made, np.ndarray) else made}


class ArrayPreparation(Preparation):
    def example(self) -> dict[str, NDArray[Any]]:
        return {name: array[0] for name, array in constant_inputs(self._stamp.inputs, 1, 8).items()}

    def one(self, item: object) -> dict[str, NDArray[Any]]:
        if not isinstance(item, Mapping):
            raise ItemError(f"is a {type(item).__name__}; allowed: an array for each input")
        return {tensor.name: _fitting(tensor, item.get(tensor.name)) for tensor in self._stamp.inputs}

    def batch(self, items: Sequence[Any]) -> dict[str, NDArray[Any]]:
        rows = self.rows(len(items))
        return {t.name: _padded(_stacked(t.name, [item[t.name] for item in items]), rows) for t in self._stamp.inputs}


def _fitting(tensor: TensorSpec, array: object) -> NDArray[Any]:
    """One item's array, without the batch axis. Raises ItemError."""
    wanted = f"{tensor.dtype} {list(tensor.shape[1:])}"
    if not isinstance(array, np.ndarray):
        raise ItemError(f"{tensor.name}: is missing; allowed: {wanted}")
    fits = array.ndim == len(tensor.shape) - 1 and all(
        want in (-1, dim) for want, dim in zip(tensor.shape[1:], array.shape, strict=True)
    )
    if array.dtype != tensor.dtype or not fits:
        raise ItemError(f"{tensor.name}: is {array.dtype} {list(array.shape)}; allowed: {wanted}")
    return array


def _stacked(name: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Raises EngineError; Triton's batcher puts requests of equal shapes together only."""
    if len({array.shape for array in arrays}) > 1:
        raise EngineError(f"{name}: shapes differ within a batch; allowed: equal ones")
    return np.stack(arrays)


def _padded(array: NDArray[Any], rows: int) -> NDArray[Any]:
    missing = rows - len(array)
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array


def preparation(stamp: Stamp, folder: Path) -> Preparation:
    """How this engine's items become its inputs. Raises EngineError."""
    if stamp.feed.kind == "text":
        return TextPreparation(stamp, folder)
    if stamp.feed.kind == "image":
        return PicturePreparation(stamp, on_gpu=stamp.runtime != "onnxruntime")
    return ArrayPreparation(stamp)
