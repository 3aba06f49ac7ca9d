"""What a plan must know of an engine, measured: latency by batch, length and threads, preparation, memory.

    rows      every batch of every length; on the CPU with 1, 2, 4, … threads, as instances that share the cores have
    prepare   what the server does to an item before it is computed: tokens of a text, pixels of a picture
    cold      how many times as long a run after a pause takes: clocks and caches have to come up again
    memory    resident bytes of a fresh process that holds the engine; every instance in Triton is one

config_gen.profile reads it. Must not know which engine is chosen, or why.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from builders.errors import BuildError
from builders.latency import Latency, batches, measure
from builders.progress import Progress
from builders.report import knee_of
from builders.runtimes import Runnable
from config_gen.profile import FORMAT
from engines.runner import Preparation, preparation
from engines.session import Arrays
from engines.stamp import TENSORRT
from loadtest.pictures import picture

SHORT = 8  # tokens: the shortest length that is measured
WIDE = 4  # times a length that the next one is at most: between them, time is taken for a straight line
FEWEST_RUNS = 5  # of each shape, as most of them are run for long enough
PREPARED, PREPARE_SECONDS = 9, 0.5  # times at least and, beyond that, seconds for which items are prepared
PAUSED, PAUSE, HEAT = 20, 0.05, 0.3  # runs; seconds before each of them, and of running without pauses
RESIDENT = """
import sys
from pathlib import Path
from engines.runner import Runner
runner = Runner(Path(sys.argv[1]))  # computes the largest batch to warm up
[line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
print(int(line.split()[1]) * 1024)
"""


def profile(
    engine: Runnable,
    folder: Path,
    typical: int,
    items: Sequence[Any],
    inputs: Callable[[int, int], Arrays],
    tell: Progress,
) -> dict[str, Any]:
    """The profile of `engine`, whose files and stamp lie in `folder`, without the name of the machine.

    `typical`: tokens of most texts, 0 where there are none. `items` are what it would be sent; none: an example. For
    pictures those that a load test sends take their place: photographs at hand may be of any size.

    Raises BuildError.
    """
    stamp = engine.stamp
    longest = stamp.feed.max_length
    lengths = measured_lengths(typical, longest) if longest else [0]
    shapes = [(batch, length) for length in lengths for batch in batches(stamp.max_batch_size)]
    if stamp.feed.kind == "image":
        items = [picture(number) for number in range(PREPARED)]
    cores = len(os.sched_getaffinity(0))
    counts = [0] if stamp.runtime in TENSORRT else batches(cores)
    sessions = {str(threads): engine.session(threads) for threads in counts}
    found = measure(sessions, shapes, inputs, tell, fewest=FEWEST_RUNS)
    tell("measuring preparation and memory", 0, 0)
    most = found[str(counts[-1])]
    prepare, session = preparation(stamp, folder), sessions[str(counts[-1])]
    one = inputs(1, typical)
    return {
        "format": FORMAT,
        "runtime": stamp.runtime,
        "precision": engine.candidate.precision,
        "cores": cores,
        "host_memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory": resident(folder),
        "prepare": prepare_cost(prepare, items or [_example(prepare, typical)], stamp.max_batch_size),
        "cold": coldness(lambda: session.run(one)),
        "typical_length": typical,
        "knee": {str(n): knee_of([row for row in most if row.length == n]) for n in lengths},
        "rows": _rows(found),
    }


def _rows(found: Mapping[str, Sequence[Latency]]) -> list[dict[str, Any]]:
    """What was measured by threads, each by length and batch."""
    return [
        {**asdict(row), "threads": int(threads)}
        for threads, rows in found.items()
        for row in sorted(rows, key=lambda row: (row.length, row.batch))
    ]


def coldness(run: Callable[[], object]) -> float:
    """Time of a run after PAUSE over that of one right after another, medians; at least 1.

    Of each kind as many runs go before those that count: clocks go up and down over several of them.
    """
    hot, cold = list[float](), list[float]()
    until = time.perf_counter() + HEAT
    while len(hot) < 2 * PAUSED or time.perf_counter() < until:
        hot.append(_timed(run))
    for _ in range(2 * PAUSED):
        time.sleep(PAUSE)
        cold.append(_timed(run))
    return max(1.0, statistics.median(cold[PAUSED:]) / statistics.median(hot[-PAUSED:]))


def measured_lengths(typical: int, longest: int) -> list[int]:
    """From the shortest to the longest, most texts' among them, each at most WIDE times the one before."""
    lengths = sorted({min(SHORT, typical), typical, min(longest, 2 * typical), longest})
    while wide := next((at for at in range(1, len(lengths)) if lengths[at] > WIDE * lengths[at - 1]), 0):
        lengths.insert(wide, round((lengths[wide - 1] * lengths[wide]) ** 0.5))
    return lengths


def prepare_cost(prepare: Preparation, items: Sequence[Any], most: int) -> Mapping[str, float]:
    """Median ms for one item alone, and for each of a batch of `most`."""
    alone: list[float] = []
    batched: list[float] = []
    until = time.perf_counter() + PREPARE_SECONDS
    while len(alone) < PREPARED or time.perf_counter() < until:
        at = len(alone)
        many = [items[(at + more) % len(items)] for more in range(most)]
        alone.append(_timed(partial(prepare, many[:1])))
        batched.append(_timed(partial(prepare, many)) / most)
    return {"p50": statistics.median(alone), "batched": statistics.median(batched)}


def _timed(run: Callable[[], object]) -> float:
    """ms."""
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3


def _example(prepare: Preparation, typical: int) -> Any:
    """An item of about so many tokens where items have some."""
    example = prepare.example()
    if not isinstance(example, str):
        return example
    return " ".join([example] * max(1, round(typical / len(prepare.one(example)))))


def resident(folder: Path) -> int:
    """Bytes of a fresh process that holds the engine in `folder` and has computed. Raises BuildError."""
    done = subprocess.run([sys.executable, "-c", RESIDENT, str(folder)], capture_output=True, text=True)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise BuildError(f"--profile: the engine cannot be loaded in a process of its own: {told}")
    return int(done.stdout)
