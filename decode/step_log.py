"""What each step computed and how long it took, for a law of step times: handed to a caller, or lines in a file.

Must not know how laws are fitted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from decode.config import ConfigError
from decode.engine import Engine
from decode.executors.cost_model import Step, work_of
from decode.executors.gpu_cost import StepWork
from decode.plan import Input, StepPlan, StepResult


class StepLog:
    """A driver's observer that hands each step to `take`.

    A step lasts until the next one begins: that is more than a result's `elapsed`, planning and events are in it. The
    last step before a pause is left out.
    """

    def __init__(self, engine: Engine, take: Callable[[Step], None]) -> None:
        self._engine = engine
        self._take = take
        self._open: tuple[StepWork, int] | None = None

    def step(self, now: int, inputs: Sequence[Input], plan: StepPlan | None, result: StepResult | None) -> None:
        if self._open is not None:
            work, began = self._open
            self._take((work, now - began))
        self._open = None if plan is None or self._engine.idle else (work_of(plan), now)


def to_file(path: Path) -> Callable[[Step], None]:
    """Writes a line a step, each at once: the fields of StepWork, then ns. Raises ConfigError."""
    try:
        file = path.open("w", buffering=1, encoding="ascii")
    except OSError as error:
        raise ConfigError(f"step_log: {str(path)!r} is not allowed ({error.strerror}); a file to write") from None

    def take(step: Step) -> None:
        if file.closed:
            return
        work, ns = step
        try:
            file.write(" ".join(map(str, (*work, ns))) + "\n")
        except OSError as error:  # a full disk must not end the requests
            print(f"step_log: {path}: {error.strerror}; no more steps are logged", file=sys.stderr)
            with suppress(OSError):
                file.close()

    return take


def read(path: Path) -> list[Step]:
    """The steps of such a file; a last line that is not whole (the writer was killed) is left out."""
    lines = path.read_text(encoding="ascii").splitlines(keepends=True)
    numbers = [[int(part) for part in line.split()] for line in lines if line.endswith("\n")]
    return [(StepWork(*row[:-1]), row[-1]) for row in numbers]
