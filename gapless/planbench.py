"""`bench plan`: goodput of planned settings on the real server, beside a grid of others and beside Triton's defaults.

The grid is what one would measure without a plan: every setting served and loaded in turn. Must not know how plans are
made.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from config_gen.batching import Batching
from config_gen.plan import ModelPlan, Plan
from config_gen.sla.spec import LlmModel
from config_gen.triton.repository import Origin, files
from gapless.batching import row
from gapless.child import server
from loadtest.run import Job
from loadtest.run import run as run_job
from loadtest.schedule import Part, schedule
from loadtest.verdict import summarize

SIZES, DELAYS, INSTANCES = (1, 4, 16, 32), (0, 2_000_000, 10_000_000), (1, 2)
DRAIN = 10 * 10**9  # ns
LEAST = 0.01  # good requests/s that a comparison counts with where there are none
ORIGIN = Origin("a bench", "gapless bench plan", "0")
FINALISTS = 3  # of the grid, that are measured again beside the plan
NEAR, TIME, WORTH = 0.95, 0.01, 1.3  # asked: of the best of the grid, of its time, over the defaults
LARGEST = 32  # that engines are built for unless the file says otherwise
KEPT = ("weights", "max_model_len", "device")  # parameters that say which model it is
LOG = Path("out/bench/plan.log")


@dataclass(frozen=True)
class Bench:
    """What is sent: parts at `scale` times their rates for `duration` ns, models built in `repository`."""

    parts: Sequence[Part]
    repository: Path
    duration: int
    scale: float
    repeat: int
    seed: int
    console: Console

    def measure(self, plan: Plan, what: str) -> float:
        """Goodput in requests/s of a server of its own."""
        planned = schedule(self.parts, self.duration, self.scale, self.seed)
        with tempfile.TemporaryDirectory(prefix="gapless-") as name:
            folder = Path(name)
            for model in plan.models:
                (folder / model.name).mkdir()
                (folder / model.name / "1").symlink_to((self.repository / model.name / "1").resolve())
            for path, text in files(plan, ORIGIN).items():
                (folder / path).write_text(text)
            with server(folder, [model.name for model in plan.models], {}, LOG) as url:
                samples, _ = run_job(Job(url, planned, self.duration, DRAIN))
        good, each = 0.0, []
        for part in self.parts:
            own, asked = [one for one in samples if one.model == part.name], part.model
            for tier in summarize(own, list(asked.traffic), self.duration, isinstance(asked, LlmModel), asked.targets):
                rate = tier.goodput or 0.0
                good += rate
                each.append(f"{part.name} {tier.tier} {rate:.1f} of {tier.offered:.1f}")
        self.console.print(f"{what}: {good:.1f} good requests/s ({', '.join(each)})", highlight=False, soft_wrap=True)
        return good


def against_grid(bench: Bench, plan: Plan, planning: float) -> list[dict[str, Any]]:
    """The plan of one batchable model beside every setting of the grid; `planning`: seconds that planning took."""
    [model] = plan.models
    assert model.batching is not None
    began = time.perf_counter()
    grid: dict[str, ModelPlan] = {}
    for size, delay, instances in product(SIZES, DELAYS, INSTANCES):
        batching = Batching(size, instances, delay)
        grid[_named(batching)] = replace(model, batching=batching)
    found = {name: bench.measure(replace(plan, models=(one,)), name) for name, one in grid.items()}
    taken = time.perf_counter() - began
    finalists = sorted(found, key=lambda name: -found[name])[:FINALISTS]
    ours, theirs = list[float](), dict[str, list[float]]()
    for _ in range(bench.repeat):
        ours.append(bench.measure(plan, f"the plan ({_named(model.batching)})"))
        for name in finalists:
            theirs.setdefault(name, []).append(bench.measure(replace(plan, models=(grid[name],)), name))
    best = max(theirs, key=lambda name: statistics.median(theirs[name]))
    return [
        *(row(f"good requests/s, {name}", [value]) for name, value in sorted(found.items(), key=lambda one: -one[1])),
        row(f"good requests/s again, {best}: the best of {len(grid)}", theirs[best]),
        row(f"good requests/s of the plan, {_named(model.batching)}", ours),
        row("the plan over the best", [a / max(b, LEAST) for a, b in zip(ours, theirs[best], strict=True)], least=NEAR),
        row(f"time of planning ({planning:.1f} s) over that of the grid", [planning / taken], most=TIME),
    ]


def _named(batching: Batching) -> str:
    return f"batches to {batching.max_batch_size}, delay {batching.delay / 1e6:g} ms, instances {batching.instances}"


def against_defaults(bench: Bench, plan: Plan) -> list[dict[str, Any]]:
    """The plan beside what Triton and the decode loop do when told nothing, under the mixed load."""
    plain = replace(plan, models=tuple(_default(model) for model in plan.models), flags=())
    ours, theirs = list[float](), list[float]()
    for _ in range(bench.repeat):
        ours.append(bench.measure(plan, "the plan"))
        theirs.append(bench.measure(plain, "defaults"))
    return [
        row("good requests/s of the plan", ours),
        row("good requests/s of the defaults", theirs),
        row("the plan over the defaults", [a / max(b, LEAST) for a, b in zip(ours, theirs, strict=True)], least=WORTH),
    ]


def _default(model: ModelPlan) -> ModelPlan:
    """`dynamic_batching {}` and one instance; of an LLM the tiers' names alone, first come first served."""
    if model.batching is not None:
        return replace(model, batching=Batching(LARGEST), knobs=(), response_cache=False)
    parameters = model.parameters or {}
    bare = json.dumps({tier: {} for tier in json.loads(parameters["tiers"])})
    kept = {key: value for key, value in parameters.items() if key in KEPT}
    return replace(model, parameters=kept | {"policy": "fcfs", "tiers": bare}, knobs=())
