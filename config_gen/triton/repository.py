"""The files of a model repository that a plan makes, as text: a configuration for each model, and the launch flags.

Each opens with who wrote it from what, and a hash by which a file that somebody changed since is told from one as it
was written. Must not know disks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePath

from config_gen.plan import Plan
from config_gen.triton.config_text import comment, commented
from config_gen.triton.serve_args import text as flags_text
from config_gen.triton.triton_config import config

CONFIG, FLAGS = "config.pbtxt", "serve.args"
MARK = "# gapless sha256: "  # of all other lines


class RepositoryError(ValueError):
    """A repository that cannot be written as asked; one line that says what to do."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Origin:
    """What the files say they come from: the SLA file's name, the command that writes them again, gapless's version."""

    spec: str
    command: str
    version: str


def files(plan: Plan, origin: Origin) -> dict[PurePath, str]:
    """Paths in the repository, and what stands there. Raises RepositoryError, or FlagError."""
    found = {
        PurePath(model.name, CONFIG): _signed(commented(config(model), model.knobs), origin) for model in plan.models
    }
    if PurePath(FLAGS, CONFIG) in found:
        raise RepositoryError(f"models.{FLAGS}: is not allowed as a name here; the launch flags go to a file called so")
    return found | {PurePath(FLAGS): _signed(flags_text(plan, FLAGS), origin)}


def _signed(body: str, origin: Origin) -> str:
    told = comment(f"Written by gapless {origin.version} from {origin.spec}; again by: {origin.command}")
    told += comment("A change made here stays: the command then says so and asks for --force.")
    head = "".join(f"{line}\n" for line in told)
    rest = f"\n{body}"
    return f"{head}{MARK}{_digest(head + rest)}\n{rest}"


def is_as_written(text: str) -> bool:
    """Whether this is a generated file that nobody changed."""
    before, mark, after = text.partition(MARK)
    told, end, body = after.partition("\n")
    return bool(mark and end) and told == _digest(before + body)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
