"""`--baseline FILE`: a run is compared with the earlier one in FILE, or becomes it where there is none yet.

Must not know servers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gapless.results import write_text
from loadtest import comparison_report, recording
from loadtest.comparison import Line, compare
from loadtest.recording import Recording
from loadtest.same_load import Asked, check, check_client, lagged


@dataclass(frozen=True)
class Baseline:
    """The file, and what it holds; None when it does not exist yet."""

    path: Path
    run: Recording | None

    @staticmethod
    def open(path: Path) -> Baseline:
        """Before minutes are spent on a load; where it can be written was checked. Raises RecordingError."""
        if not os.path.exists(path):
            return Baseline(path, None)
        run = recording.read(path)
        check_client(run, str(path))
        return Baseline(path, run)

    def check(self, asked: Asked) -> None:
        """Raise DifferentLoads unless it was sent what is about to be sent."""
        if self.run is not None:
            check(Asked.of(self.run), asked, (str(self.path), "this run"))

    def finish(self, taken: Recording, threshold: float) -> list[Line]:
        """Compare with it, or write it; nothing of a run whose client lagged. Raises UsageError."""
        if lagged(taken) is not None:
            return []
        if self.run is None:
            write_text(self.path, recording.dumps(taken), "baseline")
            return []
        return compare(self.run, taken, threshold)

    def tell(self, taken: Recording, lines: Sequence[Line], threshold: float, console: Console) -> None:
        """Print what `finish` did."""
        if lagged(taken) is not None:
            done = "written" if self.run is None else "compared with this run"
            told = f"{self.path} is not {done}: the client itself lagged."
        elif self.run is None:
            told = f"{self.path} did not exist: this run is written there, and the next one is compared with it."
        else:
            told = f"\nBeside {self.path}:\n"
        console.print(told, markup=False, highlight=False)
        if lagged(taken) is None and self.run is not None:
            comparison_report.show(lines, threshold, console)


def there(path: Path | None) -> Path | None:
    """One that is read."""
    return path if path is not None and os.path.exists(path) else None


def missing(path: Path | None) -> Path | None:
    """One that will be written."""
    return path if path is not None and not os.path.exists(path) else None
