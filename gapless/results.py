"""What a command writes where it was asked to: checked before the work, written after it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, TextIO

from gapless.errors import UsageError

STREAMS = ("/dev/", "/proc/self/fd/")  # where /dev/stdout may be a pipe, whose reader is there


def check_outputs(*read: Path | None, **files: Path | None) -> None:
    """Raise UsageError naming the option whose file cannot be written, before minutes are spent on what goes there.

    Allowed are a regular file, there or not, a link to one, and a device; none of those that are `read`, and no file
    for two options. Leaves no file behind that was not there.
    """
    given = [(option, path) for option, path in files.items() if path is not None]
    for option, path in given:
        try:
            _check(path)
            if any(other is not None and _same(path, other) for other in read):
                raise OSError(None, "is read, and would be overwritten")
        except OSError as error:
            raise UsageError(_told(option, path, error.strerror or str(error))) from None
    for (option, path), (other, there) in combinations(given, 2):
        if _same(path, there) and not (path.exists() and not path.is_file()):  # a pipe or a device takes both in turn
            raise UsageError(
                f"{_named(other, there)}: is also what {_option(option)} names; give each a file of its own"
            )


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):  # what cannot be read is told by who reads it
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)  # of what is not there


def _check(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        target = os.path.realpath(path)  # of a link that leads nowhere yet: the link stays
        with tempfile.TemporaryFile(dir=os.path.dirname(target)):  # not `path` itself: somebody may wait for it
            return
    stream = stat.S_ISCHR(mode) or (not stat.S_ISDIR(mode) and str(path).startswith(STREAMS))
    if stat.S_ISDIR(mode):
        raise OSError(None, "is a folder")
    if not stat.S_ISREG(mode) and not stream:
        raise OSError(None, "is neither a file nor a device")
    if not os.access(path, os.W_OK):
        raise OSError(None, "cannot be written")


def check_folder(option: str, path: Path) -> None:
    """Raise UsageError naming the option whose folder cannot be made or written; leaves none that was not there."""
    missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = "is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(_told(option, path, reason or str(error), "folder")) from None
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


def write_folder(path: Path, files: Mapping[str, bytes], option: str) -> None:
    """Raises UsageError, naming the option, when one cannot be written; what was written of them is taken away then."""
    written: list[Path] = []
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            written.append(path / name)
            written[-1].write_bytes(data)
    except OSError as error:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise UsageError(_told(option, path, f"{error.strerror}; the result is lost", "folder")) from None


def write_json(path: Path | None, result: Any, option: str = "json") -> None:
    """Write `result` where asked; None is nowhere. Raises ValueError on a number that JSON does not know.

    Raises UsageError when it cannot be written; no half of it is left then.
    """
    if path is not None:
        write_text(path, json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n", option)


def write_text(path: Path, text: str, option: str) -> None:
    """Raises UsageError, naming the option, when it cannot be written; no half of it is left then."""
    with opened(path, option) as file:
        file.write(text)


@contextlib.contextmanager
def opened(path: Path, option: str) -> Iterator[TextIO]:
    """A file to write a result to, piece by piece. No half of it is left when that ends with an exception.

    Raises UsageError, naming the option, when it cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
    except BaseException as error:
        with contextlib.suppress(OSError):
            if path.is_file():
                Path(os.path.realpath(path)).unlink()
        if isinstance(error, OSError):
            raise UsageError(_told(option, path, f"{error.strerror}; the result is lost")) from None
        raise


def _told(option: str, path: Path, reason: str, what: str = "file") -> str:
    return f"{_named(option, path)}: {reason}; give a {what} that can be written"


def _named(option: str, path: Path) -> str:
    name = str(path) if len(str(path)) <= 100 else f"{str(path)[:97]}..."
    return f"{_option(option)}: {name}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
