"""The machine-readable result of a command: checked before the work, written after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gapless.errors import UsageError


def check_outputs(**files: Path | None) -> None:
    """Raise UsageError naming the option whose file cannot be written, before minutes are spent on what goes there.

    Leaves no file behind that was not there before.
    """
    for option, path in files.items():
        if path is not None:
            there = path.exists()
            try:
                path.open("a").close()
                if not there:
                    path.unlink()
            except OSError as error:
                raise UsageError(f"--{option}: {path}: {error.strerror}; give a file that can be written") from None


def write_json(path: Path | None, result: Any) -> None:
    """Write `result` where asked; None is nowhere. Raises ValueError on a number that JSON does not know."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
