"""What a folder of Triton's model repository holds beside an engine: the model that runs it, and its configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
CONFIG, MODEL = "config.pbtxt", "model.py"


def add_to(version: Path) -> None:
    """Make the folder of an engine, REPOSITORY/NAME/1, one that Triton loads; a configuration that is there stays."""
    shutil.copyfile(HERE / MODEL, version / MODEL)
    config = version.parent / CONFIG
    if not config.exists():
        config.write_text((HERE / CONFIG).read_text().replace("NAME", version.resolve().parent.name))


def is_free(version: Path) -> bool:
    """Whether no other model's `model.py` lies in the folder; one of ours imports engines."""
    there = version / MODEL
    return not there.exists() or (there.is_file() and "from engines" in there.read_text(errors="replace"))
