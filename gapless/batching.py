"""`bench batching`: a built engine alone, behind its runner and behind Triton, alternatives in turn.

Three questions: is the precision that was taken faster than fp32 at the knee, what does the runner add to the bare
session, and what do batches bring through Triton.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from builders.latency import measure
from builders.progress import quiet
from builders.sources import exported
from config_gen.batching import Batching
from config_gen.sla.spec import OnnxModel
from config_gen.triton.config_text import commented
from config_gen.triton.repository import CONFIG
from config_gen.triton.triton_config import config
from engines.runner import Runner
from engines.session import OnnxSession, Session, constant_inputs, open_session
from engines.stamp import Stamp
from gapless.child import server
from gapless.engine_plan import engine_plan
from loadtest.pictures import picture
from loadtest.run import Job, run
from loadtest.samples import Planned
from loadtest.schedule import Part, schedule

BATCH = 8  # at which the runner is measured
DELAY = 2_000_000  # ns that a batch waits for more
USERS = 32  # that each send the next request when their last was answered
LOG = Path("out/bench/batching.log")
WORTH, OVERHEAD, GAIN = 1.3, 1.1, 1.8  # what is asked: at least, at most, at least


@dataclass(frozen=True)
class Bench:
    """One model, built in `repository`; `duration` of each run through Triton in ns."""

    name: str
    model: OnnxModel
    part: Part
    repository: Path
    duration: int
    repeat: int
    seed: int

    @property
    def folder(self) -> Path:
        return self.repository / self.name / "1"


def precision(bench: Bench, stamp: Stamp, knee: int, length: int) -> list[float]:
    """Rates of the engine over those of fp32 at the knee, one for each repetition; onnxruntime only."""
    graph = exported(bench.model, quiet).graph
    sessions: dict[str, Session] = {"engine": open_session(stamp, bench.folder), "fp32": OnnxSession(graph)}
    ratios = []
    for _ in range(bench.repeat):
        found = measure(sessions, [(knee, length)], lambda b, n: constant_inputs(stamp.inputs, b, n or 8))
        ratios.append(found["engine"][0].rate / found["fp32"][0].rate)
    return ratios


def runner(bench: Bench, stamp: Stamp, items: Sequence[object]) -> list[float]:
    """Time from items to results over that of the bare session on prepared inputs, at batch BATCH, each time."""
    engine = Runner(bench.folder)
    inputs = engine.prepare.batch(engine.prepare(items))
    session = open_session(stamp, bench.folder)
    ratios = []
    for _ in range(bench.repeat):
        bare, whole = _in_turn(lambda: session.run(inputs), lambda: engine.run(items))
        ratios.append(whole / bare)
    return ratios


def _in_turn(*calls: Callable[[], object], runs: int = 60) -> list[float]:
    """Median ms of each, called in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for at in range(runs + 3):
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            if at >= 3:
                taken.append((time.perf_counter() - began) * 1e3)
    return [statistics.median(taken) for taken in times]


def some_items(stamp: Stamp, planned: Sequence[Planned]) -> dict[str, list[object]]:
    """Batches of BATCH items by what they are: as they come, and in the form that leaves nothing to prepare."""
    if stamp.feed.kind == "text":
        # Of one length: of several, the runner makes better groups than a bare session's one batch.
        return {"texts": [planned[0].text] * BATCH}
    if stamp.feed.kind == "image":
        pixels = np.random.default_rng(0).integers(0, 256, (BATCH, stamp.feed.size, stamp.feed.size, 3), np.uint8)
        return {"pixels": list(pixels), "JPEG": [picture(number) for number in range(BATCH)]}
    arrays = constant_inputs(stamp.inputs, BATCH, 8)
    return {"arrays": [{name: array[row] for name, array in arrays.items()} for row in range(BATCH)]}


def through_triton(bench: Bench, largest: Sequence[int], console: Console) -> dict[int, list[float]]:
    """Requests/s by largest batch, the server started anew for each run, in turn."""
    found: dict[int, list[float]] = {batch: [] for batch in largest}
    mix = schedule([bench.part], int(20_000 / bench.part.rate * 1e9), 1.0, bench.seed)
    for at in range(bench.repeat):
        for batch, rates in found.items():
            console.print(f"through Triton, batches up to {batch}, run {at + 1} of {bench.repeat} …", highlight=False)
            with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
                repository = _with_batch(bench, Path(folder), batch)
                with server(repository, [bench.name], {}, LOG) as url:
                    samples, _ = run(Job(url, mix, bench.duration, drain=0, closed_users=USERS))
            rates.append(sum(sample.outcome == "ok" for sample in samples) / (bench.duration / 1e9))
    return found


def _with_batch(bench: Bench, folder: Path, largest: int) -> Path:
    """A repository with this model alone, whose batches hold at most `largest`."""
    shutil.copytree(bench.folder, folder / bench.name / "1")
    plan = engine_plan(bench.name, Stamp.read(bench.folder), Batching(largest, delay=DELAY))
    (folder / bench.name / CONFIG).write_text(commented(config(plan), ()))
    return folder


def measure_all(bench: Bench, console: Console) -> dict[str, Any]:
    """All three, as rows of a table."""
    stamp = Stamp.read(bench.folder)
    planned = schedule([bench.part], int(200 / bench.part.rate * 1e9), 1.0, bench.seed)
    knee = int(stamp.gate["knee"] or BATCH)
    rows = []
    if stamp.precision != "fp32":
        ratios = precision(bench, stamp, knee, typical_length(bench, stamp, planned))
        rows.append(row(f"rate of {stamp.precision} over fp32 at batch {knee}", ratios, least=WORTH))
    for kind, items in some_items(stamp, planned).items():
        # Decoding is work that somebody has to do: no part of the bare session's.
        most = None if kind == "JPEG" else OVERHEAD
        rows.append(
            row(f"time of the runner over the session at batch {BATCH}, {kind}", runner(bench, stamp, items), most=most)
        )
    rates = through_triton(bench, sorted({1, knee, stamp.max_batch_size}), console)
    rows += [row(f"requests/s through Triton, batches up to {largest}", found) for largest, found in rates.items()]
    for largest in sorted({knee, stamp.max_batch_size}):
        gains = [b / a for a, b in zip(rates[1], rates[largest], strict=True)]
        rows.append(row(f"batches up to {largest} over single ones", gains, least=GAIN if largest == knee else None))
    return {"model": bench.name, "precision": stamp.precision, "knee": knee, "users": USERS, "rows": rows}


def typical_length(bench: Bench, stamp: Stamp, planned: Sequence[Planned]) -> int:
    """Median tokens of the texts that are sent; 0 for what has no length."""
    if stamp.feed.kind != "text":
        return 0
    return int(
        statistics.median(len(ids) for ids in Runner(bench.folder).prepare([request.text for request in planned]))
    )


def row(what: str, runs: Sequence[float], least: float | None = None, most: float | None = None) -> dict[str, Any]:
    """One line of the table: what was measured, every run, and whether its median holds the bar."""
    median = statistics.median(runs)
    held = None
    if least is not None or most is not None:
        held = (least is None or median >= least) and (most is None or median <= most)
    return {"what": what, "median": median, "runs": list(runs), "least": least, "most": most, "held": held}


def table(results: Mapping[str, Any]) -> Table:
    """Every comparison with its runs and its bar."""
    shown = Table(box=None, pad_edge=False)
    for name in ("", "median", "runs", "asked", ""):
        shown.add_column(name)
    for found in results["rows"]:
        runs = ", ".join(_shown(value) for value in found["runs"])
        least, most = found["least"], found["most"]
        bar = f"at least {least:g}" if least is not None else f"at most {most:g}" if most is not None else ""
        held = {True: "held", False: "MISSED", None: ""}[found["held"]]
        shown.add_row(found["what"], _shown(found["median"]), runs, bar, held)
    return shown


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
