"""Samples on disk in a bounded ring: files of JSON lines, the oldest deleted to make room for the newest.

A segment begins with its format and goes on with a line for each sample: `t`, ns since the epoch; `new`, texts of
series, numbered in the order they come in; `set`, number and value in turn of those that changed; `gone`, numbers of
those that are not there now. Each segment can be read without the others, each line is written at once, and what
follows the last line end is no line yet: a crash loses one sample, and a reader needs no lock.
Must not know what the series mean.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from observe.series import parse

FORMAT = b'{"gapless_ring":1}\n'
SEGMENTS = 8  # that a full ring has, about
SMALLEST = 2**20  # bytes of a ring
_NAME = re.compile(r"samples-\d{8,}\.jsonl", re.ASCII)


class RingError(ValueError):
    """A folder that cannot be a ring, or that no more can be written to; one line."""

    exit_status = 2


class Ring:
    """Writes to `folder`, which is made where it is not there; all its segments together never exceed `size` bytes.

    Segments of earlier runs belong to the ring. Raises RingError when the folder cannot be written, or another
    process writes to it.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self._numbers: dict[str, int] = {}  # of series, in this segment
        self._last: dict[str, float] = {}
        self._file = -1
        self._path = folder  # of the segment that is written, and its bytes
        self._length = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o666)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._full = {path: path.stat().st_size for path in segments(folder)}
            self._newest = max((_number(path) for path in self._full), default=0)
            self._make_room(0)
        except BlockingIOError:
            raise RingError(f"{folder}: another process is writing samples there; give another folder") from None
        except OSError as error:
            raise RingError(f"{folder}: {error.strerror}; give a folder that can be written") from None

    def append(self, now: int, values: Mapping[str, float]) -> None:
        """Write one sample; values that are not a number are as if they were not there. Raises RingError."""
        known = {text: value for text, value in values.items() if not math.isnan(value)}
        try:
            line, numbers = self._line(now, known)
            if self._file < 0 or self._length + len(line) > self.size // SEGMENTS:
                self._begin()
                line, numbers = self._line(now, known)
            self._make_room(len(line))
            self._write(line)
        except OSError as error:
            raise RingError(f"{self.folder}: {error.strerror}; the samples until now are kept") from None
        self._last, self._numbers = known, numbers

    def close(self) -> None:
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _line(self, now: int, values: Mapping[str, float]) -> tuple[bytes, dict[str, int]]:
        """A sample as it is written, and the numbers of series with those that are new in it."""
        new = [text for text in values if text not in self._numbers]
        numbers = self._numbers | {text: len(self._numbers) + at for at, text in enumerate(new)}
        changed = [text for text, value in values.items() if self._last.get(text) != value]
        sample: dict[str, object] = {"t": now}
        if new:
            sample["new"] = new
        if changed:
            sample["set"] = [one for text in changed for one in (numbers[text], _shown(values[text]))]
        if gone := [numbers[text] for text in self._last if text not in values]:
            sample["gone"] = gone
        line = json.dumps(sample, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") + b"\n"
        return line, numbers

    def _begin(self) -> None:
        """Close the segment and begin another one, which knows nothing of those before."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._full[self._path] = self._length
        self._newest += 1
        self._path = self.folder / f"samples-{self._newest:08d}.jsonl"
        self._numbers, self._last, self._length = {}, {}, 0
        self._make_room(len(FORMAT))
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._write(FORMAT)

    def _make_room(self, more: int) -> None:
        """Delete the oldest segments until `more` bytes fit. Raises RingError where they never do."""
        while sum(self._full.values()) + self._length + more > self.size:
            if not self._full:
                told = f"a sample takes {more} bytes and the ring has {self.size}; a larger --size is needed"
                raise RingError(f"{self.folder}: {told}")
            oldest = next(iter(self._full))
            oldest.unlink(missing_ok=True)
            del self._full[oldest]

    def _write(self, line: bytes) -> None:
        """All of it, or nothing where the disk is full."""
        written = os.write(self._file, line)
        if written < len(line):
            os.ftruncate(self._file, self._length)
            raise OSError(None, "the disk is full")
        self._length += written


def _shown(value: float) -> float | int | str:
    """Whole numbers as such, which is shorter; infinity as text, for which JSON has no number."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return int(value) if abs(value) < 2**53 and value == int(value) else float(value)


class Step(NamedTuple):
    """What one sample changed. `fresh`: it begins a segment, so what it does not set is not there."""

    time: int
    changed: Mapping[str, float]
    gone: tuple[str, ...]
    fresh: bool


def segments(folder: Path) -> list[Path]:
    """Files of a ring, the oldest first."""
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_number)


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("samples-"))


def replay(folder: Path) -> Iterator[Step]:
    """All samples of a ring, the oldest first, also while it is written. Raises RingError when it is none.

    A line that cannot be read ends its segment: those after it say only what changed.
    """
    paths, held = _listed(folder)
    for path in paths:
        lines = held[path] if path in held else _lines(path)
        if lines and lines[0].endswith(b"\n") and lines[0] != FORMAT:
            raise RingError(f"{path}: is not of this version's format; give a folder that this gapless has written")
        yield from _steps(lines[1:])


def _listed(folder: Path) -> tuple[list[Path], dict[Path, list[bytes]]]:
    """Segments, and the lines of the last two, of which the very last may have just begun. Raises RingError.

    They are read at once: whoever writes fast may have deleted them when their turn comes.
    """
    while True:
        try:
            paths = segments(folder)
        except OSError as error:
            raise RingError(f"{folder}: {error.strerror}; give a folder that gapless observe has written") from None
        if not paths:
            raise RingError(f"{folder}: holds no samples; give a folder that gapless observe has written")
        held = {path: _lines(path) for path in paths[-2:]}
        if paths[-1].exists():
            return paths, held


def _lines(path: Path) -> list[bytes]:
    """Of a segment; none where it has been deleted since, for being the oldest. Raises RingError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise RingError(f"{path}: is no regular file; give a folder that gapless observe has written")
        return path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RingError(f"{path}: {error.strerror}; give a folder that can be read") from None


def _steps(lines: list[bytes]) -> Iterator[Step]:
    texts: list[str] = []
    for at, line in enumerate(lines):
        if not line.endswith(b"\n"):
            return
        try:
            yield _step(line, texts, fresh=at == 0)
        except (ValueError, OverflowError, RecursionError):
            return


def _step(line: bytes, texts: list[str], fresh: bool) -> Step:
    """What a line says; `texts` gets its new series. Raises ValueError, OverflowError, RecursionError."""
    sample = json.loads(line)
    if not isinstance(sample, dict):
        raise ValueError
    new, put, gone = (sample.get(name, []) for name in ("new", "set", "gone"))
    if not isinstance(new, list) or not isinstance(put, list) or not isinstance(gone, list):
        raise ValueError
    texts += map(_series, new)
    pairs = zip(put[::2], put[1::2], strict=True)
    changed = {texts[_whole(number, len(texts))]: _value(value) for number, value in pairs}
    left = tuple(texts[_whole(number, len(texts))] for number in gone)
    return Step(_whole(sample.get("t"), 2**63), changed, left, fresh)  # as many ns as an int64 holds


def _whole(number: object, below: int) -> int:
    if type(number) is not int or not 0 <= number < below:  # a bool is an int, too
        raise ValueError
    return number


def _value(value: object) -> float:
    """As `_shown` writes it."""
    if value == "inf" or value == "-inf":
        return float(str(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _series(text: object) -> str:
    """The same, which names a series."""
    if not isinstance(text, str) or not parse(text).plain:
        raise ValueError
    return text
