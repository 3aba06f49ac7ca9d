"""`gapless doctor`: what ails a server, from samples that were taken of it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.percentiles import percentile
from config_gen.sla.spec import load
from gapless.commands.loadtest import duration_option
from gapless.errors import UsageError
from gapless.results import check_outputs, check_outside, write_json
from loadtest import recording
from observe import window
from observe.doctor import diagnosis, report
from observe.doctor.facts import ClientFacts
from observe.doctor.gather import DoctorError

HALF = Fraction(1, 2)


def run(
    folder: Annotated[Path, typer.Argument(help="folder of samples that gapless observe wrote", metavar="DIR")],
    sla: Annotated[Path | None, typer.Option(help="SLA file: targets, and which tier is the more urgent")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="what `gapless loadtest --samples` wrote meanwhile: the client's view")
    ] = None,
    last: Annotated[int | None, duration_option("look at the last part only; default: all")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the diagnosis as JSON")] = None,
) -> None:
    """Exit 0 when nothing but hints is found, 1 when something is to be mended, 2 on bad input."""
    check_outputs(sla, samples, json=json_file)
    check_outside(folder, json=json_file)
    spec = load(sla) if sla is not None else None
    client = _client(samples) if samples is not None else None
    found = window.read(folder)
    if last is not None and len(found.times):
        end = int(found.times[-1])
        found = found.between(end - last, end)
    try:
        told = diagnosis.diagnose(found, spec, client)
    except DoctorError as error:
        raise UsageError(f"{folder}: {error}") from None
    write_json(json_file, diagnosis.as_json(str(folder), told))
    Console(highlight=False).print(report.shown(told))
    raise typer.Exit(0 if told.healthy else 1)


def _client(path: Path) -> ClientFacts:
    """What the load generator saw, in seconds: of answers that ended while it sent, as the server counts them, too."""
    taken = recording.read(path)
    whole = {
        key: sorted(
            one.e2e / 1e9
            for one in taken.of(*key)
            if one.outcome == "ok" and one.end is not None and one.end <= taken.duration
        )
        for key in taken.sent
    }
    began = taken.client.began
    return ClientFacts(
        began,
        began + taken.duration,
        taken.client.send_lag / 1e9,
        {key: percentile(times, HALF) for key, times in whole.items() if times},
    )
