"""A plan as files of a model repository, with who wrote them from what. Wires config_gen's text to its files."""

from __future__ import annotations

import importlib.metadata
import shlex
from pathlib import Path

from config_gen.plan import Plan
from config_gen.triton.repository import Origin, files
from config_gen.triton.repository_files import Change, changes, write
from gapless.parts import REPOSITORY


def pending(plan: Plan, out: Path, sla: Path) -> list[Change]:
    """Files of `out` that are not as `plan`, made from `sla`, has them. Raises RepositoryError or FlagError."""
    command = f"gapless generate {shlex.quote(str(sla))}"
    if out != REPOSITORY:
        command += f" --out {shlex.quote(str(out))}"
    return changes(out, files(plan, Origin(sla.name, command, importlib.metadata.version("gapless"))))


def generate_repository(plan: Plan, out: Path, sla: Path, *, force: bool = False) -> list[Path]:
    """Write what is not as planned, and return it. Raises RepositoryError when a user changed some of it."""
    wanted = pending(plan, out, sla)
    write(wanted, force=force)
    return [change.path for change in wanted]
