"""Results of a build's stages, kept in the user's cache by what went into them: what has been done is not done again.

A stage counts only once it is whole, so that a build cut short goes on where it was. Must not know what stages do.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from builders.placing import LOCK, locked, scratch_in
from builders.source import cache_directory
from engines.stamp import digest

DONE = "done.json"
KEPT = 20 * 10**9  # bytes of stages; beyond that those used longest ago go
RECENT = 24 * 3600  # seconds for which a stage stays in any case


def key_of(facts: Any) -> str:
    """A name for what these facts (JSON) lead to with the builders as they are: corrected ones make things anew."""
    text = json.dumps([facts, _own_code()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def _own_code() -> list[str]:
    return [digest(path) for path in sorted(Path(__file__).parent.glob("*.py"))]


def stage(name: str, facts: Any, make: Callable[[Path], dict[str, Any]], *, force: bool = False) -> tuple[Path, Any]:
    """The folder of a stage with these facts, and what `make` returned when it filled it."""
    root = cache_directory().parent / "builds"
    home = root / f"{name}-{key_of(facts)}"
    with locked(home):
        found = None if force else _whole(home)
        if found is None:
            (home / DONE).unlink(missing_ok=True)
            found = _made(home, facts, make)
        (home / DONE).touch()
    _forget(root)
    return home, found["result"]


def _whole(home: Path) -> Any:
    """What is known of a stage whose files are all there as they were made; None where they are not."""
    try:
        found = json.loads((home / DONE).read_text())
        whole = all(digest(home / name) == known for name, known in found["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return found if whole else None


def _made(home: Path, facts: Any, make: Callable[[Path], dict[str, Any]]) -> Any:
    with scratch_in(home, 0) as scratch:
        result = make(scratch)
        for old in home.iterdir():
            if old.is_file() and not old.name.startswith("."):
                old.unlink()
        files = {path.name: digest(path) for path in sorted(scratch.iterdir())}
        for name in files:
            (scratch / name).replace(home / name)
    text = json.dumps({"facts": facts, "result": result, "files": files}, default=str)
    (home / "done.new").write_text(text)
    (home / "done.new").replace(home / DONE)
    return json.loads(text)


def _forget(root: Path) -> None:
    """Stages used longest ago, those of builds that were killed among them; one that is being made is left alone."""
    known = []
    for path in root.iterdir():
        with contextlib.suppress(OSError):  # another build may have removed it
            size = sum(file.stat().st_size for file in path.iterdir())
            known.append(((path / DONE if (path / DONE).exists() else path).stat().st_mtime, size, path))
    total = 0
    for used, size, path in sorted(known, reverse=True):
        total += size
        if total > KEPT and used < time.time() - RECENT:
            with contextlib.suppress(OSError), (path / LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
