"""What was measured of an engine: how long runs take by batch, length and threads, and what else a plan must know.

Reads what `gapless build --profile` wrote and answers for shapes between the measured ones. Must not know how it was
measured or what is planned from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked

FORMAT = 3  # of the file; another number means: measure again
STRICT = ConfigDict(strict=True, extra="forbid")
Positive = Annotated[float, Field(gt=0, lt=1e9)]
Whole = Annotated[int, Field(ge=0, le=2**50)]


class ProfileError(ValueError):
    """A file that holds no profile; one line, names the file, what is wrong with it and the command that measures."""

    exit_status = 2


@checked(frozen=True, slots=True, config=STRICT)
class Row:
    """One shape. Times in ms; `spread` is the distance between quartiles; `rate` in items/s."""

    batch: Annotated[int, Field(ge=1)]
    length: Whole  # tokens of each text; 0 for what has none
    threads: Whole  # 0: it runs on a GPU
    p50: Positive
    p99: Positive
    spread: Annotated[float, Field(ge=0, lt=1e9)]
    rate: Positive
    runs: Annotated[int, Field(ge=1)]


@checked(frozen=True, slots=True, config=STRICT)
class Prepare:
    """What one item costs before it is computed (tokens of a text, pixels of a picture), in ms."""

    p50: Annotated[float, Field(ge=0, lt=1e9)]  # alone
    batched: Annotated[float, Field(ge=0, lt=1e9)]  # its part of a full batch, which several threads may share


@checked(frozen=True, config=STRICT)
class Profile:
    """The whole file. `memory`: resident bytes of a process that holds the engine and has computed the largest batch.

    `cores` and `host_memory` (bytes) are those of the machine; a run after a pause takes `cold` times as long as one
    after another; `run_cost` is (of a run, of each padded token in it) in ms, of a text model; `typical_length` in
    tokens, 0 for what has no length; `knee` is the batch worth its latency, by length.
    """

    format: Literal[3]
    machine: str
    runtime: Literal["onnxruntime", "tensorrt", "tensorrt_rtx"]
    precision: Literal["fp32", "fp16", "int8"]
    cores: Annotated[int, Field(ge=1)]
    host_memory: Whole
    memory: Whole
    prepare: Prepare
    cold: Annotated[float, Field(ge=1, lt=1e6)]
    typical_length: Whole
    run_cost: tuple[float, float] | None
    knee: dict[str, int]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_a_grid(self) -> Profile:
        for threads in {row.threads for row in self.rows}:
            found = [(row.batch, row.length) for row in self.rows if row.threads == threads]
            whole = set(product({batch for batch, _ in found}, {length for _, length in found}))
            if len(found) != len(whole) or set(found) != whole:
                raise ValueError(f"rows of {threads} threads: not every batch with every length, once")
        return self

    @classmethod
    def read(cls, path: Path, rebuild: str = "gapless build NAME --sla FILE") -> Profile:
        """Of an engine that `rebuild` builds. Raises ProfileError."""
        again = f"run {rebuild} --profile again"
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise ProfileError(f"{path}: {error.strerror}; {again}") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            told = f"{where}: {first['msg']}" if where else first["msg"]
            raise ProfileError(
                f"{path}: holds no profile ({' '.join(told.removeprefix('Value error, ').split())}); {again}"
            ) from None

    @property
    def prepare_ms(self) -> float:
        """What one item alone costs before it is computed."""
        return self.prepare.p50

    def ns(self, rows: int, length: int = 0, threads: int = 0) -> float:
        """Predicted median of a run of `rows` items, each padded to `length` tokens, on so many threads (0: all).

        Exact where it was measured, unless a larger shape took less (a neighbour held this one up): then as long as
        that. Never less for more rows or tokens; shorter than measured takes as long as the shortest, and beyond the
        grid time grows with the size.
        """
        grids = self._grids
        known = sorted(grids)
        wanted = min(threads or known[-1], known[-1])
        at = bisect_right(known, wanted) - 1
        if at < 0 or known[at] == wanted:  # on a GPU threads do not matter
            return grids[known[max(at, 0)]].ns(rows, length)
        few, many = known[at], known[at + 1]
        share = (1 / few - 1 / wanted) / (1 / few - 1 / many)
        fewer, more = grids[few].ns(rows, length), grids[many].ns(rows, length)
        return fewer + share * (more - fewer)

    @cached_property
    def _grids(self) -> dict[int, _Grid]:
        """By threads."""
        return {n: _grid([row for row in self.rows if row.threads == n]) for n in {row.threads for row in self.rows}}


@dataclass(frozen=True, slots=True)
class _Grid:
    """`values[i][j]`: ns of batches[i] at lengths[j]; ascending in both."""

    batches: Sequence[int]
    lengths: Sequence[int]
    values: list[list[float]] = field(repr=False)

    def ns(self, rows: int, length: int) -> float:
        i, f, larger = _find(self.batches, rows)
        j, g, longer = _find(self.lengths, length)
        low = self.values[i][j] + (g * (self.values[i][j + 1] - self.values[i][j]) if g else 0.0)
        if f:
            above = self.values[i + 1]
            low += f * (above[j] + (g * (above[j + 1] - above[j]) if g else 0.0) - low)
        return low * larger * longer


def _find(sizes: Sequence[int], size: int) -> tuple[int, float, float]:
    """Index at or below, fraction to the next, how many times the last it is where it is beyond that."""
    if size <= sizes[0]:
        return 0, 0.0, 1.0
    if size >= sizes[-1]:
        return len(sizes) - 1, 0.0, size / sizes[-1] if sizes[-1] else 1.0  # what has no length has none
    i = bisect_right(sizes, size) - 1
    return i, (size - sizes[i]) / (sizes[i + 1] - sizes[i]), 1.0


def _grid(rows: Sequence[Row]) -> _Grid:
    batches, lengths = sorted({row.batch for row in rows}), sorted({row.length for row in rows})
    taken = {(row.batch, row.length): row.p50 * 1e6 for row in rows}
    for batch, length in product(reversed(batches), reversed(lengths)):
        larger = [taken[b, n] for b, n in _next(batches, lengths, batch, length)]
        taken[batch, length] = min([taken[batch, length], *larger])
    return _Grid(batches, lengths, [[taken[batch, length] for length in lengths] for batch in batches])


def _next(batches: Sequence[int], lengths: Sequence[int], batch: int, length: int) -> list[tuple[int, int]]:
    """The next larger shapes: by one batch, by one length."""
    i, j = batches.index(batch), lengths.index(length)
    return [(b, length) for b in batches[i + 1 : i + 2]] + [(batch, n) for n in lengths[j + 1 : j + 2]]
