"""Results of a build's stages, kept in the user's cache by what went into them: what has been done is not done again.

A stage counts only once it is whole, so that a build cut short goes on where it was. Must not know what stages do.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders.placing import locked, scratch_in
from builders.source import cache_directory

DONE = "done.json"
MAKERS = 1  # raised whenever the builders make something else of the same facts
KEPT = 40  # folders of earlier stages; the ones used longest ago go first


def key_of(facts: Any) -> str:
    """A name for what these facts (JSON) lead to."""
    return hashlib.sha256(json.dumps([MAKERS, facts], sort_keys=True, default=str).encode()).hexdigest()[:24]


def stage(name: str, facts: Any, make: Callable[[Path], dict[str, Any]], *, force: bool = False) -> tuple[Path, Any]:
    """The folder of a stage with these facts, and what `make` returned when it filled it."""
    root = cache_directory().parent / "builds"
    home = root / f"{name}-{key_of(facts)}"
    with locked(home):
        done = home / DONE
        if force or not done.exists():
            done.unlink(missing_ok=True)
            with scratch_in(home, 0) as scratch:
                result = make(scratch)
                for old in home.iterdir():
                    if old.is_file() and not old.name.startswith("."):
                        old.unlink()
                for path in scratch.iterdir():
                    path.replace(home / path.name)
            (home / "done.new").write_text(json.dumps({"facts": facts, "result": result}, default=str))
            (home / "done.new").replace(done)
        done.touch()
        found = json.loads(done.read_text())["result"]
    _forget(root)
    return home, found


def _forget(root: Path) -> None:
    homes = [(path / DONE, path) for path in root.iterdir()]
    known = sorted(((done.stat().st_mtime_ns, path) for done, path in homes if done.exists()), reverse=True)
    for _, path in known[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
