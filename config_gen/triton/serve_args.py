"""The flags of tritonserver that a plan's models need, and the file that carries them: one a line, with its reason.

Ports and addresses are not among them: they belong to who starts the server.
"""

from __future__ import annotations

import re

from config_gen.plan import Knob, ModelPlan, Plan
from config_gen.triton.config_text import comment

FLAG = re.compile(r"--[a-z][a-z0-9-]*(=[^\s*?\[\]$`'\"\\]+)?")  # one word, in which no shell finds anything to expand
CACHE = 64 << 20  # bytes, where the plan says nothing
HOW = (
    "What tritonserver needs beside the models. `gapless serve` gives it by itself; without it: "
    "tritonserver --model-repository=… $(grep -v '^#' {file})"
)


class FlagError(ValueError):
    """A flag that cannot stand in the file; one line."""

    exit_status = 2


def flags(plan: Plan) -> tuple[Knob, ...]:
    """What the models need, then the other flags of the plan, which says its own where it has some of one name."""
    own = {knob.name for knob in plan.flags}
    needed = [knob for knob in _needed(plan.models) if knob.name not in own]
    return (*needed, *plan.flags)


def _needed(models: tuple[ModelPlan, ...]) -> list[Knob]:
    found = [Knob("--model-control-mode", "explicit", "a model can be loaded again without starting the server anew")]
    found += [Knob("--load-model", model.name, "") for model in models]
    if limited := [model.name for model in models if model.rate_limit]:
        why = f"off by default, and then the resources of {', '.join(limited)} limit nothing"
        found.append(Knob("--rate-limit", "execution_count", why))
    if cached := [model.name for model in models if model.response_cache]:
        why = f"bytes for answers of {', '.join(cached)}; without a cache nothing is kept"
        found.append(Knob("--cache-config", f"local,size={CACHE}", why))
    found.append(Knob("--metrics-config", "summary_latencies=true", "queue and compute times also as percentiles"))
    return found


def text(plan: Plan, file: str) -> str:
    """The lines of `file`. Raises FlagError on a flag that a shell or this file would take for something else."""
    lines = [*comment(HOW.format(file=file)), ""]
    for knob in flags(plan):
        flag = f"{knob.name}={knob.value}" if knob.value else knob.name
        if not FLAG.fullmatch(flag):
            raise FlagError(f"{file}: {flag!r} is not allowed; one word, as --name=value")
        lines += [*comment(knob.reason), flag]
    return "".join(f"{line}\n" for line in lines)


def read(text: str) -> list[str]:
    """The flags of such a file. Raises FlagError naming the line at fault."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        flag = line.strip()
        if flag and not flag.startswith("#"):
            if not FLAG.fullmatch(flag):
                raise FlagError(f"{number}: {flag[:100]!r} is not allowed; one flag a line, as --name=value")
            found.append(flag)
    return found
