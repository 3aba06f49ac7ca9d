"""`gapless …`: one sub-command per module of `gapless.commands`, loaded only when it is called.

Errors a user can mend carry `exit_status`; they are printed as one line, as is a package of an extra that is not
installed. Anything else is a defect and keeps its trace.
"""

from __future__ import annotations

import importlib
import io
import sys

import typer

from gapless import extras

COMMANDS = {
    "build": "Turn model sources into what the server loads: LLMs, and engines that passed an accuracy gate.",
    "plan": "Choose settings that keep the promises of an SLA file, with the reason for each.",
    "generate": "Write the configuration of the model repository that an SLA file needs.",
    "alerts": "Write rules for Prometheus and a dashboard for Grafana that watch the promises of an SLA file.",
    "lint": "Look for mistakes in a Triton model repository, ours or not.",
    "serve": "Start Triton with a model repository, wait until it answers, and keep it alive.",
    "verify": "Plan, generate, serve and load as declared; measured beside predicted.",
    "loadtest": "Send the declared traffic and give a verdict per traffic class.",
    "loadworker": "Join a load test that is led elsewhere, and send a share of its requests.",
    "compare": "Lay a recorded run beside an earlier one of the same load: what changed by more than chance.",
    "observe": "Sample Triton, GPUs and this machine into a bounded ring of files; what memory does; a trace of steps.",
    "doctor": "Say what ails a server, from a folder of samples: causes, evidence, what to do.",
    "simulate": "Predict what the declared traffic would get, with the scheduler that serves, on a virtual clock.",
    "rounds": "The reported case on the real server: four configurations of the engine under the same load.",
    "bench": "Measure the engine on this machine.",
    "demo": "Build, serve, load and judge the demo, scaled to this machine.",
}


def main() -> None:
    """Entry point of the `gapless` script: exit 0 when what was asked holds, 1 when not, 2 on bad input."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no "≤" costs no result
    try:
        _main()
    except KeyboardInterrupt:  # while a command is still being imported; later typer answers it
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (line := extras.missing(error, _wanted())) is None:
            raise
        print(f"gapless: {line}", file=sys.stderr)
        sys.exit(2)


def _wanted() -> str:
    return sys.argv[1] if len(sys.argv) > 1 else ""


def _main() -> None:
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    wanted = _wanted()
    for name, summary in COMMANDS.items():
        if name == wanted:
            module = importlib.import_module(f"gapless.commands.{name}")
            if hasattr(module, "app"):
                app.add_typer(module.app, name=name, help=summary)
            else:
                app.command(name, help=summary)(module.run)
        else:
            app.command(name, help=summary)(_listed_only)
    try:
        app()
    except Exception as error:
        status = getattr(error, "exit_status", None)
        if status is None:
            raise
        print(f"gapless: {error}", file=sys.stderr)
        sys.exit(status)


def _listed_only() -> None:
    """Stands for a command that was not asked for, so that `gapless --help` lists it without importing it."""
