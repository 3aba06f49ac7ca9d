"""Arrays of measurements into the cells of a table: gaps filled, never falling, rounded. Values are log2 of µs."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from decode.executors.gpu_table import STEPS


def pool(values: np.ndarray, axis: int) -> np.ndarray:
    """The nearest values (least squares) that never fall along `axis`: pool adjacent violators."""

    def line(row: np.ndarray) -> np.ndarray:
        blocks: list[list[float]] = []
        for value in row:
            blocks.append([float(value), 1.0])
            while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
                (a, n), (b, k) = blocks[-2], blocks.pop()
                blocks[-1] = [(a * n + b * k) / (n + k), n + k]
        return np.repeat([b[0] for b in blocks], [int(b[1]) for b in blocks])

    return np.apply_along_axis(line, axis, values)


def floor_and_work(values: np.ndarray, axes: Sequence[Sequence[int]], powers: Sequence[float]) -> np.ndarray:
    """log2 of the least time plus the work at the best rate: the bend that every operator has from small to large."""
    sizes = [np.array(axis, dtype=float) ** power for axis, power in zip(axes, powers, strict=True)]
    work = functools.reduce(np.multiply.outer, sizes)
    rate = np.nanmax(work / 2**values)
    return np.log2(2 ** np.nanmin(values) + work / rate)


def fill(values: np.ndarray, axes: Sequence[Sequence[int]], powers: Sequence[float]) -> np.ndarray:
    """Cells without a measurement: as far from `floor_and_work` as their neighbours along each axis say (median)."""
    logs = [np.log2(np.array(axis, dtype=float)) for axis in axes]
    bend = floor_and_work(values, axes, powers)
    values = values - bend
    for beyond in (False, True):
        while np.isnan(values).any():
            found: dict[tuple[int, ...], list[float]] = defaultdict(list)
            for cell in map(tuple, np.argwhere(np.isnan(values))):
                for axis, x in enumerate(logs):
                    line = values[(*cell[:axis], slice(None), *cell[axis + 1 :])]
                    have = np.flatnonzero(~np.isnan(line))
                    if have.size and (beyond or have[0] < cell[axis] < have[-1]):
                        found[cell].append(float(np.interp(x[cell[axis]], x[have], line[have])))
            if not found:
                break
            for cell, guesses in found.items():
                values[cell] = np.median(guesses)
    return values + bend


def coded(values: np.ndarray) -> list[Any]:
    return np.rint(values * STEPS).astype(int).tolist()
