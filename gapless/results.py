"""What a command writes where it was asked to: checked before the work, written after it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations, count
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


def check_outside(folder: Path, **files: Path | None) -> None:
    """Raise UsageError naming the option whose file lies, however deep, in a folder that is read."""
    for option, path in files.items():
        if path is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise UsageError(f"{_named(option, path)}: lies in {folder}, which is read; give a file elsewhere")


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


def check_apart(option: str, folder: Path, written: Sequence[str], **files: Path | None) -> None:
    """Raise UsageError where a file is what becomes the folder of `option`, or bears a name that is `written` there.

    `written` are patterns of names. Raises also where a folder or a device has such a name already.
    """
    home = Path(os.path.realpath(folder))
    for name, path in files.items():
        if path is None:
            continue
        place = Path(os.path.realpath(path))
        if home.is_relative_to(place):
            raise UsageError(f"{_named(name, path)}: would be the folder of {_option(option)}; give a file beside it")
        named = {path.name, place.name}
        if home in (place.parent, Path(os.path.realpath(path.parent))) and _any_match(named, written):
            raise UsageError(f"{_named(name, path)}: is what {_option(option)} writes there; give it another name")
    with contextlib.suppress(OSError):  # what is no folder, or cannot be read, is told by `check_folder`
        for there in folder.iterdir():
            if _any_match({there.name}, written) and there.exists() and not there.is_file():
                raise UsageError(f"{_named(option, there)}: is there and not a file; give another folder")


def _any_match(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


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
    """All of them or none. Raises UsageError, naming the option, when one cannot be written; old ones stay then."""
    fresh: dict[Path, Path] = {}
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            target = Path(os.path.realpath(path / name))
            if target.exists() and not target.is_file():
                raise OSError(None, f"{name} is there and not a file")
            fresh[target] = _beside(target)
            fresh[target].write_bytes(data)
        for target, new in fresh.items():
            _move(new, target)
    except OSError as error:
        raise UsageError(_told(option, path, f"{error.strerror}; the result is lost", "folder")) from None
    finally:
        for new in fresh.values():
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)


def write_json(path: Path | None, result: Any, option: str = "json") -> None:
    """Write `result` where asked; None is nowhere. Raises ValueError on a number that JSON does not know.

    Raises UsageError when it cannot be written; what was there stays then.
    """
    if path is not None:
        write_text(path, json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n", option)


def write_text(path: Path, text: str, option: str) -> None:
    """Raises UsageError, naming the option, when it cannot be written; what was there stays then."""
    with opened(path, option) as file:
        file.write(text)


@contextlib.contextmanager
def opened(path: Path, option: str) -> Iterator[TextIO]:
    """A file to write a result to, piece by piece. What was there stays when that ends with an exception.

    Raises UsageError, naming the option, when it cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))  # a link stays one
        if _in_place(path, target):
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                yield file
            return
        fresh = _beside(target)
        try:
            with fresh.open("w", encoding="utf-8", errors="backslashreplace") as file:
                yield file
            _move(fresh, target)
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(_told(option, path, f"{error.strerror}; the result is lost")) from None


def _in_place(path: Path, target: Path) -> bool:
    """Whether it can only be written as it is: what is no file, and a file whose folder takes no other."""
    stream = str(path).startswith(STREAMS)
    return stream or (target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)))


def _beside(target: Path) -> Path:
    """A new file in the folder of `target`, empty, with its permissions. Raises OSError."""
    for number in count():
        fresh = target.parent / f".gapless-{os.getpid()}-{number}"  # short: a long name has no room for a longer one
        with contextlib.suppress(FileExistsError):
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            break
    if target.exists():
        fresh.chmod(stat.S_IMODE(target.stat().st_mode))
    return fresh


def _move(fresh: Path, target: Path) -> None:
    """In one step, unless `target` is mounted by itself, as files are into containers. Raises OSError."""
    try:
        fresh.replace(target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        shutil.copyfile(fresh, target)


def _told(option: str, path: Path, reason: str, what: str = "file") -> str:
    return f"{_named(option, path)}: {reason}; give a {what} that can be written"


def _named(option: str, path: Path) -> str:
    name = str(path) if len(str(path)) <= 100 else f"{str(path)[:97]}..."
    return f"{_option(option)}: {name}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
