"""`bench generator`: what the load generator itself can do, against a Triton whose models have nothing to compute.

Texts to a model that answers at once, and token streams at a fixed pace, from one process that has a core of its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

import loadtest
from config_gen.batching import Batching
from config_gen.plan import ModelPlan, Tensor
from config_gen.sla.quantity import show_duration
from config_gen.triton.config_text import commented
from config_gen.triton.llm_tensors import INPUTS, OUTPUTS
from config_gen.triton.repository import CONFIG
from config_gen.triton.triton_config import config
from gapless.child import server
from gapless.errors import UsageError
from loadtest.run import Client, Job, run
from loadtest.samples import Planned, Sample

LAG = 10_000_000  # ns: the P99 that both lags of the generator must stay below
STREAM_TOKENS = 100  # of one stream, after which another takes its place
DRAIN = 10 * 10**9  # ns
LOG = Path("out/bench/generator.log")
TIER = "bench"
TEXT = " ".join(["A sentence of about as many words as are embedded at once, to be told apart from others"] * 2)
UNARY = ModelPlan(
    "unary",
    (),
    (Tensor("text", "TYPE_STRING", (1,)),),
    (Tensor("vector", "TYPE_FP32", (384,)),),
    Batching(64),
)


@dataclass(frozen=True)
class Bench:
    """Texts per second, streams that are open at once, tokens per second of each; `duration` of a round in ns."""

    rate: float
    streams: int
    pace: float
    duration: int
    repeat: int
    seed: int


@dataclass(frozen=True)
class Round:
    """What was achieved, per second, and how the generator did. `cost`: its CPU time in ns per message it took."""

    texts: float
    tokens: float
    failed: int
    client: Client
    cost: float

    @property
    def lag(self) -> float:
        return max(self.client.send_lag, self.client.loop_lag)

    @property
    def held(self) -> bool:
        return self.lag < LAG and not self.failed


def planned(bench: Bench) -> list[Planned]:
    """What every round sends, in the order of time. Raises UsageError when that is nothing."""
    found = sorted([*texts(bench), *streams(bench)], key=lambda request: request.at)
    if not found:
        raise UsageError("nothing to send in this --duration; give a larger --rate, or --streams")
    return found


def measure(bench: Bench, requests: Sequence[Planned], console: Console) -> list[Round]:
    """Every round, one after another, on one server. Raises ChildError."""
    first, rest = cores()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        add_models(Path(folder), bench.pace)
        with on(rest), server(Path(folder), ["unary", "stream"], {}, LOG) as url:
            for at in range(bench.repeat):
                console.print(f"round {at + 1} of {bench.repeat} …", highlight=False)
                with on(first):  # what is started here stays there
                    taken, client = run(Job(url, requests, bench.duration, DRAIN))
                rounds.append(_round(taken, client, bench.duration))
    return rounds


def cores() -> tuple[set[int], set[int]]:
    """The core of the generator, and those of the server; the same one where there is no other."""
    first, *rest = sorted(os.sched_getaffinity(0))
    return {first}, set(rest) or {first}


@contextmanager
def on(wanted: set[int]) -> Iterator[None]:
    """This thread, and what it starts meanwhile, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def add_models(repository: Path, pace: float) -> None:
    """Two models that answer without computing: `unary` and `stream`."""
    stream = ModelPlan("stream", (), INPUTS, OUTPUTS, parameters={"interval": repr(1 / pace)})
    for model in (UNARY, stream):
        version = repository / model.name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(Path(*loadtest.__path__) / "served" / "model.py", version / "model.py")
        (repository / model.name / CONFIG).write_text(commented(config(model), ()))


def texts(bench: Bench) -> Iterator[Planned]:
    """Independent arrivals: gaps are drawn from an exponential distribution."""
    random, at, number = Random(f"{bench.seed}/texts"), 0.0, 0
    while bench.rate and (at := at + random.expovariate(bench.rate) * 1e9) < bench.duration:
        yield Planned(f"text-{number}", "unary", TIER, int(at), f"{TEXT} {number}.")
        number += 1


def streams(bench: Bench) -> Iterator[Planned]:
    """As many as shall be open at once from the start; each that ends is followed by another.

    The first ones are of all lengths, so that later ones begin one after another.
    """
    lasting = STREAM_TOKENS / bench.pace
    for slot in range(bench.streams):
        at, tokens = slot / bench.streams / bench.pace, -(-STREAM_TOKENS * (slot + 1) // bench.streams)
        while at * 1e9 < bench.duration:
            left = max(1, min(tokens, int((bench.duration / 1e9 - at) * bench.pace)))
            yield Planned(f"stream-{slot}-{at:.3f}", "stream", TIER, int(at * 1e9), "Hello.", max_tokens=left)
            at, tokens = at + (lasting if tokens == STREAM_TOKENS else tokens / bench.pace), STREAM_TOKENS


def _round(taken: Sequence[Sample], client: Client, duration: int) -> Round:
    good = [sample for sample in taken if sample.outcome == "ok" and (sample.end or 0) <= duration + LAG]
    tokens = sum(sample.output_tokens for sample in taken)
    answers = sum(not sample.asked for sample in good)
    last = max(max(sample.end or 0 for sample in taken), duration)
    return Round(
        texts=answers / (duration / 1e9),
        tokens=tokens / (duration / 1e9),
        failed=sum(sample.outcome != "ok" for sample in taken),
        client=client,
        cost=client.cpu * last / max(1, answers + sum(len(sample.messages) for sample in taken)),
    )


def table(rounds: Sequence[Round]) -> Table:
    """One line a round."""
    shown = Table(box=None, pad_edge=False)
    for name in ("lag of sending P99", "of its loop P99", "of a core", "CPU per message", "texts/s", "tokens/s", ""):
        shown.add_column(name, justify="right")
    for one in rounds:
        lags = show_duration(one.client.send_lag), show_duration(one.client.loop_lag)
        held = "held" if one.held else f"MISSED{f', {one.failed} failed' if one.failed else ''}"
        cost = f"{one.cost / 1e3:.0f} µs"
        shown.add_row(*lags, f"{one.client.cpu:.0%}", cost, f"{one.texts:.1f}", f"{one.tokens:.1f}", held)
    return shown


def as_json(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    return [
        {
            "send_lag_p99_s": one.client.send_lag / 1e9,
            "loop_lag_p99_s": one.client.loop_lag / 1e9,
            "cores": one.client.cpu,
            "cpu_per_message_s": one.cost / 1e9,
            "texts_per_s": one.texts,
            "tokens_per_s": one.tokens,
            "failed": one.failed,
            "held": one.held,
        }
        for one in rounds
    ]
