"""Entries of a step log in a file, a JSON line each, written at once: what follows the last line end is no line yet.

A file begins with a header: the tiers in the order in which waiting requests are counted, and the requests that had
started before. When it is full it becomes FILE.1, in place of the one before, and a new one begins:
the last steps are there however long a server runs. Must not know what entries are read for.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from decode.config import ConfigError, EngineConfig
from decode.executors.cost_model import Step
from decode.executors.gpu_cost import StepWork
from decode.step_log import Came, Entry, Gone, Part, Started, steps

MOST = 2**29  # bytes of FILE and FILE.1 together: a million steps with some 30 requests each
LONGEST = 2**20  # bytes of a line
MARK = b'{"gapless_steps":1,'  # what a file begins with
HIGHEST = 10**19  # of any number in a line: ns since the epoch until the year 2286
SLACK = 10**9  # ns by which a round may begin before the last one was over
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what reading odd JSON raises
# Types of the fields, as they are in a line.
CAME, GONE, PREEMPTED = (str, str, int), (str, str, int), (int, bool)
STARTED = (int, str, str, int, int, int)


class StepFileError(ValueError):
    """A file that is no step log, or holds no step; one line."""

    exit_status = 2


class Header(NamedTuple):
    tiers: tuple[str, ...]
    open: tuple[Started, ...]  # requests that had started and not ended when the file began


class StepFile:
    """Writes entries to `path`, anew. Raises ConfigError when it cannot be written, or another engine writes there."""

    def __init__(self, path: Path, config: EngineConfig, most: int = MOST) -> None:
        self._path, self._config = path, config
        self._half = most // 2
        self._open: dict[str, Started] = {}
        self._length = 0  # bytes; 0: no header yet
        self._told = False
        try:
            self._file = self._create()
            self._regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
            if self._regular:
                self._file.truncate(0)
                older(path).unlink(missing_ok=True)
        except BlockingIOError:
            raise ConfigError(f"step_log: {str(path)!r} is not allowed; another engine writes to it") from None
        except OSError as error:
            raise ConfigError(f"step_log: {str(path)!r} is not allowed ({error.strerror}); a file to write") from None

    def take(self, entry: Entry) -> None:
        """Write it. A disk that is full ends the log and nothing else."""
        if self._file.closed:
            return
        try:
            self._append(_encoded(entry))
        except OSError as error:  # must not end the requests
            print(f"step_log: {self._path}: {error.strerror}; no more steps are logged", file=sys.stderr)
            self._file.close()
        for started in entry.started:
            self._open[started.id] = started
        for gone in entry.gone:
            self._open.pop(gone.id, None)

    def _create(self) -> FileIO:
        """Open the file, made where it is not there; what is in it stays."""
        file = FileIO(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def _append(self, line: bytes) -> None:
        if self._regular and self._length and self._length + len(line) > self._half:
            os.replace(self._path, older(self._path))
            self._file.close()
            self._file, self._length = self._create(), 0
            if not self._told:
                print(f"step_log: {self._path} is full; {older(self._path)} keeps what came before", file=sys.stderr)
                self._told = True
        if not self._length:
            self._write(_encoded_header(self._config, tuple(self._open.values())))
        self._write(line)

    def _write(self, line: bytes) -> None:
        written = self._file.write(line)
        self._length += written
        if written < len(line):
            raise OSError(None, "the disk is full")


def older(path: Path) -> Path:
    """Where what was in a file goes when it is full."""
    return Path(f"{path}.1")


def read(path: Path) -> tuple[Header, Iterator[Entry]]:
    """The header and all entries so far, the oldest first, also while they are written. Raises StepFileError."""
    try:
        last = path.open("rb")  # first: it may become the older one before that is open
        first = older(path).open("rb") if older(path).exists() else None
    except OSError as error:
        told = f"{path}: {error.strerror}; give a file that gapless serve --option step_log=FILE has written"
        raise StepFileError(told) from None
    files = [last] if first is None or os.path.sameopenfile(first.fileno(), last.fileno()) else [first, last]
    header = _header(files[0])
    return header, _entries(files, len(header.tiers))


def newest(path: Path) -> Entry | None:
    """The last entry so far; None while there is none. Raises StepFileError."""
    for file in (path, older(path)):
        with suppress(FileNotFoundError), file.open("rb") as lines:
            lines.seek(max(0, lines.seek(0, os.SEEK_END) - LONGEST))
            whole = [line for line in lines.read().splitlines(keepends=True) if line.endswith(b"\n")]
            if whole and not whole[-1].startswith(MARK):
                return _decoded(whole[-1], f"{file}: the last line")
    return None


def law_steps(path: Path) -> list[Step]:
    """What the steps of such a file computed, and what they took. Raises StepFileError."""
    return list(steps(read(path)[1]))


def _encoded_header(config: EngineConfig, started: tuple[Started, ...]) -> bytes:
    told = {"tiers": [tier.name for tier in config.tiers], "open": started}
    return MARK + json.dumps(told, separators=(",", ":"))[1:].encode() + b"\n"


def _header(file: BinaryIO) -> Header:
    """Of an open file, whose first line it reads."""
    line = file.readline(LONGEST)
    if not line.endswith(b"\n") and MARK.startswith(line[: len(MARK)]):
        raise StepFileError(f"{file.name}: holds no step yet; send a request, and try again")
    try:
        if not line.startswith(MARK):
            raise ValueError
        told = json.loads(line)
        names = _rows([[name] for name in told["tiers"]], (str,))
        return Header(tuple(name for (name,) in names), tuple(Started(*one) for one in _rows(told["open"], STARTED)))
    except DAMAGE:
        what = "is no step log of this version; give a file that gapless serve --option step_log=FILE has written"
        raise StepFileError(f"{file.name}: {what}") from None


def _encoded(entry: Entry) -> bytes:
    """Without what is empty, and parts as one flat list, which most of a line is."""
    line: dict[str, object] = {
        "t": entry.began,
        "d": entry[1:4],
        "r": entry.running,
        "q": entry.waiting,
        "k": entry.pages,
    }
    if entry.work is not None:
        line |= {"n": entry.step, "w": entry.work, "c": [number for part in entry.parts for number in part]}
    optional = {"in": entry.came, "on": entry.started, "off": entry.preempted, "end": entry.gone, "e": entry.error}
    line |= {name: value for name, value in optional.items() if value}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _decoded(line: bytes, where: str) -> Entry:
    try:
        told = json.loads(line)
        began, running, pages = _counts([told["t"], told["r"], told["k"]])
        planned, executed, ended = _counts(told["d"], 3)
        step, work = (_counts([told["n"]])[0], StepWork(*_counts(told["w"], 6))) if "n" in told else (None, None)
        parts, error = _counts(told.get("c", [])), told.get("e", "")
        if not planned <= executed <= ended or len(parts) % 3 or type(error) is not str:
            raise ValueError
        numbers = iter(parts)
        return Entry(
            began,
            planned,
            executed,
            ended,
            step,
            work,
            tuple(map(Part, numbers, numbers, numbers)),
            tuple(Came(*one) for one in _rows(told.get("in", []), CAME)),
            tuple(Started(*one) for one in _rows(told.get("on", []), STARTED)),
            tuple((seq, saved) for seq, saved in _rows(told.get("off", []), PREEMPTED)),
            tuple(Gone(*one) for one in _rows(told.get("end", []), GONE)),
            running,
            tuple(_counts(told["q"])),
            pages,
            error,
        )
    except DAMAGE:
        raise StepFileError(f"{where} is no line of a step log; its writer may have been cut off there") from None


def _counts(told: object, length: int | None = None) -> list[int]:
    """The same, whole numbers from 0 on, so many of them. Raises ValueError."""
    if type(told) is not list or length not in (None, len(told)):
        raise ValueError
    for number in told:
        if type(number) is not int or not 0 <= number <= HIGHEST:  # true is an int, too
            raise ValueError
    return told


def _rows(told: object, kinds: tuple[type, ...]) -> list[list[Any]]:
    """The same, lists whose elements are of these types, numbers from 0 on. Raises ValueError."""
    if type(told) is not list:
        raise ValueError
    for row in told:
        if type(row) is not list or tuple(map(type, row)) != kinds:
            raise ValueError
        _counts([one for one in row if type(one) is int])
    return told


def _entries(files: Sequence[BinaryIO], tiers: int) -> Iterator[Entry]:
    """Of open files, the oldest first, of which the first one's header has been read."""
    over = 0  # when the last round was
    for at, file in enumerate(files):
        with file:
            for number, line in enumerate(file, start=1 if at else 2):
                if not line.endswith(b"\n"):
                    break
                if number > 1:
                    where = f"{file.name}: line {number}"
                    entry = _decoded(line, where)
                    if len(entry.waiting) != tiers:
                        raise StepFileError(
                            f"{where} counts waiting requests of {len(entry.waiting)} tiers, not {tiers}"
                        )
                    if entry.began < over - SLACK:
                        raise StepFileError(f"{where} begins before the line before it ended; the file is damaged")
                    over = entry.began + entry.ended
                    yield entry
