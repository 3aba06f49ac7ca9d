"""The thin `model.py` that Triton loads for a model of each kind, put beside what was built.

Must not know configurations: those are generated.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import decode
import engines

Kind = Literal["llm", "onnx"]
MODEL = "model.py"
ROOMS = {"llm": decode, "onnx": engines}  # whose `served/model.py` it is


def add_model(kind: Kind, version: Path) -> None:
    """Make the folder of what was built, REPOSITORY/NAME/1, one that Triton can load. Raises OSError."""
    shutil.copyfile(Path(*ROOMS[kind].__path__) / "served" / MODEL, version / MODEL)


def is_free(kind: Kind, version: Path) -> bool:
    """Whether no other model's `model.py` lies in the folder; one of ours imports the edge of its room."""
    there = version / MODEL
    edge = {"llm": "from decode import stub, triton_io", "onnx": "from engines import triton_io"}[kind]
    return not there.exists() or (there.is_file() and edge in there.read_text(errors="replace"))
