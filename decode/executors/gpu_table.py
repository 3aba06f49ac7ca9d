"""The tables of measured operators under `gpus/`, and how a size between or beyond the measured ones is read from them.

One JSON file per GPU; tools/fit_gpu.py makes them, and each says where it is from and how far it was off on
measurements that it does not hold. Standard library only; must not know models.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

TABLES = Path(__file__).parent / "gpus"
STEPS = 100  # values in the tables are hundredths of an octave above one microsecond
Kind = Literal["prefill", "decode"]


class GpuError(ValueError):
    """A GPU, or a precision on it, that has no table; one line, names what there is."""

    exit_status = 2


class Axis:
    """Measured sizes along one dimension, and where between them a size lies (in logarithms)."""

    def __init__(self, sizes: Sequence[float]) -> None:
        self.logs = [math.log2(size) for size in sizes]

    def find(self, size: float) -> tuple[int, float, float]:
        """Index below, fraction to the next, octaves beyond the last. Below the first size the first counts."""
        logs, x = self.logs, math.log2(size) if size > 0 else -math.inf
        if x <= logs[0]:
            return 0, 0.0, 0.0
        if x >= logs[-1]:
            return len(logs) - 1, 0.0, x - logs[-1]
        i = bisect_right(logs, x) - 1
        return i, (x - logs[i]) / (logs[i + 1] - logs[i]), 0.0


class Grid:
    """Latency over two sizes, interpolated in logarithms; beyond the last size it grows with the work.

    `values[i][j]`: log2 of µs. `power`: of the second size in the work (context of decoding 1, prompt length 2).
    """

    def __init__(self, rows: Axis, columns: Axis, values: list[list[float]], power: float, scale: float = 1.0) -> None:
        self.rows, self.columns, self.values, self.power, self.scale = rows, columns, values, power, scale

    def ns(self, row: float, column: float) -> float:
        i, f, more = self.rows.find(row * self.scale)
        j, g, longer = self.columns.find(column)
        upper = self.values[i]
        value = upper[j] + (g * (upper[j + 1] - upper[j]) if g else 0.0)
        if f:
            lower = self.values[i + 1]
            value += f * (lower[j] + (g * (lower[j + 1] - lower[j]) if g else 0.0) - value)
        return float(1000.0 * 2.0 ** (value + more + self.power * longer))


class GpuTable:
    """One file of `gpus/`, and the questions it answers."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.name: str = raw["gpu"]

    def precision(self, name: str) -> str:
        """The table of linear layers that serves weights of this precision. Raises GpuError."""
        known: dict[str, str] = self.raw["precisions"]
        if name not in known:
            raise GpuError(f"precision {name!r} has no measurements on {self.name}; choose one of {', '.join(known)}")
        return known[name]

    def tokens(self, precision: str) -> list[int]:
        """Numbers of tokens at which linear layers were measured."""
        sizes: list[int] = self.raw["linear"][precision]["m"]
        return sizes

    def linear(self, precision: str, n: int, k: int) -> list[float]:
        """log2 of µs of [m, k] x [k, n], for each m of `tokens`."""
        table = self.raw["linear"][precision]
        i, f, wider = Axis(table["n"]).find(n)
        j, g, deeper = Axis(table["k"]).find(k)
        total = [wider + deeper] * len(table["m"])
        for row, weight in ((i, 1 - f), (i + 1, f)):
            for column, share in ((j, 1 - g), (j + 1, g)):
                if weight * share:
                    cell = table["values"][row][column]
                    total = [t + weight * share * v / STEPS for t, v in zip(total, cell, strict=True)]
        return total

    def linear_grid(self, precision: str, n: int, k: int) -> Grid:
        """Latency of one linear layer over its tokens; the second size is 1."""
        return Grid(Axis(self.tokens(precision)), Axis([1]), [[v] for v in self.linear(precision, n, k)], 0.0)

    def attention(self, kind: Kind, heads: int, kv_heads: int, head_dim: int) -> Grid:
        """Latency over (sequences, context) for decode, over (prompts, tokens of each) for prefill.

        Heads that were not measured lie between those that were, with as many query heads to a KV head; sequences and
        KV heads are alike to the kernels, so more KV heads than measured count as more sequences.
        """
        dim = min(self.raw[kind], key=lambda d: abs(math.log2(head_dim / int(d))))
        table, scale = self.raw[kind][dim], head_dim / int(dim)
        pairs = {tuple(pair): cells for pair, cells in zip(table["pairs"], table["values"], strict=True)}
        group, most = heads / kv_heads, max(kv for h, kv in pairs if h > kv)
        ends = [(kv_heads, 1.0)]
        if (heads, kv_heads) not in pairs:
            if kv_heads > most:
                kv_heads, scale = most, scale * kv_heads / most
            known = sorted({kv for _, kv in pairs if kv <= most})
            i, f, _ = Axis(known).find(kv_heads)
            ends = [(known[i], 1 - f), (known[min(i + 1, len(known) - 1)], f)]
        total = [[0.0] * len(table["columns"]) for _ in table["rows"]]
        for kv, weight in ends:
            sizes = sorted(h for h, other in pairs if other == kv)
            j, g, beyond = Axis(sizes).find(group * kv)
            more = beyond if kind == "prefill" else 0.0  # each query head costs; K and V are read once for a group
            for at, share in ((j, weight * (1 - g)), (j + 1, weight * g)):
                if share:
                    add(total, share, pairs[sizes[at], kv], more)
        return Grid(Axis(table["rows"]), Axis(table["columns"]), total, 2.0 if kind == "prefill" else 1.0, scale)


def add(total: list[list[float]], share: float, cells: list[list[int]], more: float) -> None:
    """Add a share of a table's cells, each `more` octaves up, to `total`."""
    for row, line in zip(total, cells, strict=True):
        for j, cell in enumerate(line):
            row[j] += share * (cell / STEPS + more)


def known_gpus() -> list[str]:
    """Names of all tables, sorted."""
    return sorted(path.stem for path in TABLES.glob("*.json"))


@cache
def gpu_names() -> dict[str, tuple[str, ...]]:
    """The other names of every table, by its own."""
    read = {name: (TABLES / f"{name}.json").read_text(encoding="utf-8") for name in known_gpus()}
    return {name: tuple(json.loads(text)["aliases"]) for name, text in read.items()}


@cache
def gpu_table(name: str) -> GpuTable:
    """The table of a GPU by its name or one of its other names ("a100-80gb"). Raises GpuError."""
    wanted = name.lower().replace("-", "_")
    path = TABLES / f"{wanted}.json"
    if wanted in known_gpus():
        return GpuTable(json.loads(path.read_text(encoding="utf-8")))
    for known, more in gpu_names().items():
        if wanted in more:
            return gpu_table(known)
    raise GpuError(f"GPU {name!r} is not known; known are {', '.join(known_gpus())}")
