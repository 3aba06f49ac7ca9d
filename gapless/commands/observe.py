"""`gapless observe`: samples of Triton, GPUs and this machine in a bounded ring; what memory does; a trace of steps."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from config_gen.sla import quantity
from decode.step_file import older
from gapless.commands.loadtest import duration_option
from gapless.errors import UsageError
from gapless.results import check_outputs, check_outside, write_json
from gapless.tracing import write_trace
from observe import window
from observe.live import screen
from observe.recorder import record
from observe.ring import SMALLEST, Ring, RingError
from observe.sources.base import Source
from observe.sources.host import Host
from observe.sources.nvml import Nvml
from observe.sources.page import dcgm, triton, wrong_url

SHORTEST = 100 * 10**6  # ns between samples
OUT = Path("out/observed")
SHOWN = 30 * 10**9  # ns that the dashboard looks back


def _size(text: str) -> int:
    try:
        size = quantity.memory(text)
    except quantity.QuantityError as error:
        raise typer.BadParameter(str(error)) from None
    if size < SMALLEST:
        raise typer.BadParameter(f"'{text}' is not allowed; at least {SMALLEST >> 20}MiB")
    return size


def run(
    context: typer.Context,
    metrics: Annotated[str, typer.Option(help="Triton's metrics page")] = "http://127.0.0.1:8002/metrics",
    dcgm_page: Annotated[str | None, typer.Option("--dcgm", help="a DCGM exporter's page")] = None,
    interval: Annotated[int, duration_option("between samples")] = "1s",  # type: ignore[assignment]
    out: Annotated[Path | None, typer.Option(help="folder of the samples; out/observed", metavar="DIR")] = None,
    size: Annotated[int, typer.Option(help="most that all samples take", parser=_size, metavar="SIZE")] = "64MiB",  # type: ignore[assignment]
    duration: Annotated[int | None, duration_option("how long; default: until Ctrl-C")] = None,
    live: Annotated[bool, typer.Option("--live", help="show the last seconds")] = False,
    memory: Annotated[
        Path | None, typer.Option(help="say what the memory curves in a folder of samples show", metavar="DIR")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="write the steps of an LLM for Perfetto's UI, with samples of --out", metavar="FILE"),
    ] = None,
    steps: Annotated[
        Path | None, typer.Option(help="what gapless serve --option step_log=FILE has written", metavar="FILE")
    ] = None,
    last: Annotated[int | None, duration_option("of the steps, only the last stretch")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="with --memory: write that as JSON")] = None,
) -> None:
    """Exit 0; with --memory 1 when something leaks; 2 on bad input."""
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    if trace is not None or steps is not None or last is not None:
        _trace(context, trace, steps, last, out, memory, console)
        return
    if memory is not None:
        _nothing_but(context, "memory", "json_file")
        raise typer.Exit(1 if _tell_memory(memory, json_file, console) else 0)
    if json_file is not None:
        raise UsageError("--json: holds what --memory says; give --memory DIR, or leave it out")
    for option, url in (("metrics", metrics), ("dcgm", dcgm_page)):
        if url is not None and (why := wrong_url(url)):
            raise UsageError(f"--{option}: {why}")
    if interval < SHORTEST:
        raise UsageError(f"--interval: {quantity.show_duration(interval)} is not allowed; at least 100 ms")
    if live and not console.is_terminal:
        raise UsageError("--live: the output is no terminal; leave it out, and read the samples")
    pages: list[Source] = [triton(metrics), *([dcgm(dcgm_page)] if dcgm_page else [])]
    _sample([*pages, Nvml(), Host()], Ring(out or OUT, size), interval, duration, live, console)


def _nothing_but(context: typer.Context, *allowed: str) -> None:
    """Raises UsageError for a given option that would say nothing; the first of `allowed` is what was asked."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in allowed:
            raise UsageError(f"{option.opts[0]}: says nothing beside --{allowed[0]}; leave it out")


def _trace(
    context: typer.Context,
    trace: Path | None,
    steps: Path | None,
    last: int | None,
    out: Path | None,
    memory: Path | None,
    console: Console,
) -> None:
    """Write what a step log holds, and print what it shows."""
    if trace is None or steps is None:
        raise UsageError("--trace FILE, to be written, needs --steps FILE, where steps were logged; neither goes alone")
    if memory is not None:
        raise UsageError("--memory: not together with --trace; each answers a question of its own")
    _nothing_but(context, "trace", "steps", "last", "out")
    check_outputs(steps, older(steps), trace=trace)
    try:
        lines = write_trace(steps, trace, out or OUT, last)
    except RingError:
        if out is not None:
            raise
        lines = write_trace(steps, trace, None, last)  # nobody asked for samples: without those that cannot be read
    for line in lines:
        console.print(line, markup=False)


def _sample(
    sources: Sequence[Source], ring: Ring, interval: int, duration: int | None, live: bool, console: Console
) -> None:
    """Until it is asked to end, or `duration` has passed."""

    def say(line: str) -> None:
        console.print(line, markup=False)  # above the dashboard

    recent: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=max(2, SHOWN // interval))
    count = 0
    screens = Live(console=console, auto_refresh=False) if live else nullcontext()
    with ring, _asked_to_end() as ended:
        say(f"sampling into {ring.folder}, at most {ring.size / 2**20:.4g} MiB; Ctrl-C ends it")
        with screens as shown:

            def take(now: int, values: Mapping[str, float]) -> None:
                nonlocal count
                count += 1
                recent.append((now, values))
                ring.append(now, values)
                if shown is not None:
                    shown.update(screen(window.of_samples(recent)), refresh=True)

            record(sources, interval, ended, say, take, duration)
        say(f"{count} sample{'' if count == 1 else 's'} in {ring.folder}")


@contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM, so that what is being written is written."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_memory(folder: Path, json_file: Path | None, console: Console) -> bool:
    """Print what each memory's curve says, and write it where asked; whether one leaks."""
    from observe import memory_report  # scipy takes a second to import, which sampling does without

    check_outputs(json=json_file)
    check_outside(folder, json=json_file)
    seen = window.read(folder, memory_report.wanted)
    found = list(memory_report.told(seen))
    for one in found:
        console.print(Text(one.name, style="bold"))
        for sentence in one.sentences:
            console.print(f"  {sentence}", markup=False, style="bold red" if sentence.startswith("LEAK") else None)
    leaks = [one.name for one in found if one.leaks]
    longest = max((one.curve.seconds for one in found), default=seen.seconds)
    short = longest < memory_report.WATCHED
    calm = "Too short to say whether anything leaks." if short else "Nothing is seen to leak."
    console.print(f"Leaking: {', '.join(leaks)}." if leaks else calm, markup=False)
    write_json(json_file, memory_report.as_json(found))
    return bool(leaks)
