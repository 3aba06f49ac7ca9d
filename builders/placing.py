"""Where builds put their files: one build of a directory at a time, in a scratch directory, all at once at the end.

Must not know what is built.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from builders.errors import BuildError

LOCK = ".build.lock"


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """One build of a directory, which is made, at a time; a second one waits and then finds it up to date.

    A build that fails removes the lock and the directories, where it made them.
    """
    path = out / LOCK
    while True:
        made = [directory for directory in (out, *out.parents) if not directory.exists()]
        fresh = not path.exists()
        out.mkdir(parents=True, exist_ok=True)
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is(path, lock.fileno()):
                continue  # the build waited for has failed and removed it
            try:
                yield
            except BaseException:
                _unmake([path] if fresh else [], made)
                raise
            return


def _is(path: Path, opened: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False


def _unmake(files: list[Path], directories: list[Path]) -> None:
    """Directories only while they are empty: somebody else may use them by now."""
    for file in files:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for directory in directories:
            directory.rmdir()


@contextlib.contextmanager
def scratch_in(out: Path, num_bytes: int) -> Iterator[Path]:
    """An empty directory on the same file system, removed at the end; those of killed builds are removed first."""
    for left in out.glob(".build-*"):
        shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(out).free
    if free < num_bytes:
        raise BuildError(f"{out}: {num_bytes / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free")
    scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=out))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def swap(scratch: Path, out: Path, stamp: str, names: Collection[str], old: Collection[str]) -> None:
    """Put `names` in place beside the files that are there, then the stamp that names them, then remove `old` ones.

    Whenever this is cut short, the stamp names files that are there.
    """
    for name in names:
        os.replace(scratch / name, out / name)
    os.replace(scratch / stamp, out / stamp)
    for name in set(old) - set(names):
        if Path(name).name == name:  # an old stamp may say anything
            (out / name).unlink(missing_ok=True)


def place(scratch: Path, out: Path, names: Iterable[str], stamp: str) -> None:
    """Put `names` in place; those the build did not make are removed.

    The stamp goes first and comes last: a build cut short here is built again.
    """
    (out / stamp).unlink(missing_ok=True)
    for name in names:
        if (scratch / name).exists():
            os.replace(scratch / name, out / name)
        else:
            (out / name).unlink(missing_ok=True)
    os.replace(scratch / stamp, out / stamp)
