"""The one seam under the engine: what every executor offers."""

from __future__ import annotations

from typing import Protocol

from decode.plan import StepPlan, StepResult


class Executor(Protocol):
    """Executes plans, one at a time, from one thread. `profile` holds the seconds spent so far, by part of a step."""

    profile: dict[str, float]

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and return its tokens; the result's `elapsed` is the time it took, in nanoseconds."""
        ...
