"""Named ranges in the stepping thread, for Nsight Systems: on a CUDA device only, elsewhere nothing is called.

`plan`, `execute`, `commit` and `emit` come from the driver's phases; the executor names what it does within `execute`.
Must not know what is done in a range.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

Named = Callable[[str], AbstractContextManager[object]]

_NOTHING = nullcontext()


def ranges(device: torch.device | str) -> Named:
    """`with ranges(device)("forward"): …`; ranges nest."""
    return torch.cuda.nvtx.range if torch.device(device).type == "cuda" else _unnamed


def phases(device: torch.device | str) -> Callable[[str | None], None] | None:
    """A range for each phase of the driver's rounds, told as the driver does; None where nobody wants to know."""
    return _PhaseRanges() if torch.device(device).type == "cuda" else None


def _unnamed(name: str) -> AbstractContextManager[object]:
    return _NOTHING


class _PhaseRanges:
    """One range is open at a time, from the begin of a phase to that of the next."""

    def __init__(self) -> None:
        self._open = False

    def __call__(self, phase: str | None) -> None:
        if self._open:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
        self._open = phase is not None
        if phase is not None:
            torch.cuda.nvtx.range_push(phase)  # type: ignore[no-untyped-call]
