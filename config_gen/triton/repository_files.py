"""Puts generated files on disk, all of them or none: what a user changed stays, what is the same is not touched.

Must not know what the files say.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from config_gen.triton.repository import RepositoryError, is_as_written


@dataclass(frozen=True, slots=True)
class Change:
    """One file that is not yet as wanted. `old` is what stands there, None where nothing does."""

    path: Path
    old: bytes | None
    new: bytes

    @property
    def is_ours(self) -> bool:
        """Whether nothing is lost by writing it: it is not there, or as it was generated."""
        return self.old is None or is_as_written(self.old.decode("utf-8", "replace"))

    def diff(self) -> str:
        """A unified diff from what is there to what is wanted."""
        before = "" if self.old is None else self.old.decode("utf-8", "replace")
        lines = difflib.unified_diff(
            list(io.StringIO(before, newline="\n")),
            list(io.StringIO(self.new.decode(), newline="\n")),
            "/dev/null" if self.old is None else str(self.path),
            str(self.path),
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def changes(repository: Path, files: Mapping[PurePath, str]) -> list[Change]:
    """Which files are not as wanted. Raises RepositoryError when one cannot be read."""
    found = []
    for name, text in files.items():
        path = repository / name
        try:
            old = path.read_bytes()
        except FileNotFoundError:
            old = None
        except OSError as error:
            raise RepositoryError(f"{path}: {error.strerror}; nothing was written") from None
        if old != text.encode():
            found.append(Change(path, old, text.encode()))
    return found


def write(wanted: Sequence[Change], *, force: bool = False) -> None:
    """Write all of them, or none. Raises RepositoryError naming every file that is a user's, unless forced.

    Each file is replaced in one go, after all of them were written beside their places. Whatever is raised on the way
    leaves what was there; a power cut in the middle can leave old files beside new ones, each whole.
    """
    if lost := [str(change.path) for change in wanted if not change.is_ours and not force]:
        raise RepositoryError(
            f"{', '.join(lost)}: changed by hand, or not written by gapless generate; --diff shows the difference, "
            "--force overwrites; nothing was written"
        )
    fresh = {change.path: _beside(change.path) for change in wanted}
    made: list[Path] = []  # folders that were not there
    placed: list[Change] = []
    try:
        for change in wanted:
            _make_folder(change.path.parent, made)
            _write_through(fresh[change.path], change.new)
        for change in wanted:
            fresh[change.path].replace(change.path)
            placed.append(change)
    except BaseException as error:
        for change in reversed(placed):
            _restore(change)
        for path in fresh.values():
            with contextlib.suppress(OSError):  # it may never have come to that
                path.unlink()
        for folder in reversed(made):
            folder.rmdir()
        if isinstance(error, OSError):
            where = error.filename or wanted[len(placed)].path
            raise RepositoryError(f"{where}: {error.strerror}; nothing was written") from None
        raise


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _make_folder(folder: Path, made: list[Path]) -> None:
    """The folder and those above it that are missing, which are added to `made`, outermost first."""
    if not folder.exists():
        _make_folder(folder.parent, made)
        folder.mkdir()
        made.append(folder)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _restore(change: Change) -> None:
    if change.old is None:
        change.path.unlink()
    else:
        _write_through(_beside(change.path), change.old)
        _beside(change.path).replace(change.path)
