"""An executor without a model: tokens and step times come from functions. For tests and scheduling benchmarks."""

from __future__ import annotations

from collections.abc import Callable

from decode.plan import Chunk, StepPlan, StepResult


class ScriptedExecutor:
    """`token(chunk)` is drawn for every chunk that asks; a step takes `elapsed(plan)` nanoseconds."""

    def __init__(self, token: Callable[[Chunk], int], elapsed: Callable[[StepPlan], int] = lambda plan: 0) -> None:
        self._token = token
        self._elapsed = elapsed
        self.profile: dict[str, float] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        tokens = tuple(self._token(c) if c.draw is not None else None for c in plan.chunks)
        return StepResult(tokens, self._elapsed(plan))
