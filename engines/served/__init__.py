"""What a folder of Triton's model repository holds beside an engine: the model that runs it, and its configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
CONFIG = "config.pbtxt"


def add_to(version: Path) -> None:
    """Make the folder of an engine, REPOSITORY/NAME/1, one that Triton loads; a configuration that is there stays."""
    shutil.copyfile(HERE / "model.py", version / "model.py")
    config = version.parent / CONFIG
    if not config.exists():
        config.write_text((HERE / CONFIG).read_text().replace("NAME", version.parent.name))
