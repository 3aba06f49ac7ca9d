"""Builds the engine of a batchable model: every precision asked for and below it, the gate, latency, the best one.

    model-HASH.onnx or .plan   what runs
    tokenizer-HASH.json        of a model that takes texts
    profile-HASH.json          latency by batch, length and threads, memory, preparation, with --profile
    engine.json                the stamp; swapped in last, so that an old engine is whole until the new one is

Must not know Triton.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from builders import compile as tensorrt
from builders.errors import BuildError
from builders.gate import Score
from builders.latency import Latency, as_json, batches, measure
from builders.placing import locked, scratch_in, swap
from builders.precisions import Candidate, Precisions
from builders.profiling import profile
from builders.progress import Progress, quiet
from builders.report import Built, Row, built_from, choose, knee_of, verdict
from builders.runtimes import Runnable, base_stamp, choose_runtime, runnable, runs_here
from builders.sources import exported
from builders.stages import key_of, stage
from config_gen.sla.spec import SERVING, OnnxModel
from engines.errors import EngineError
from engines.grouping import fit
from engines.runner import preparation
from engines.session import constant_inputs
from engines.stamp import FILE, TENSORRT, Stamp, compute_capability, digest

BELOW = {"int8": ("int8", "fp16", "fp32"), "fp16": ("fp16", "fp32"), "fp32": ("fp32",)}
PROFILE = "profile.json"


def build_engine(
    name: str,
    model: OnnxModel,
    out: Path,
    *,
    rebuild: str,
    machine: str = "",
    profile: bool = False,
    force: bool = False,
    tell: Progress = quiet,
) -> Built:
    """Build `model` into the folder `out`, unless it is there already and nothing changed.

    `rebuild` is the command that does so again, `machine` what latencies are measured on. Raises BuildError; what was
    in `out` is then as it was.
    """
    started = time.monotonic()
    try:
        with locked(out):
            build = _Build(name, model, out, rebuild, machine, profile, tell, force)
            known = None if force else build.already()
            made = known or build.make()
            return replace(made, seconds=time.monotonic() - started, up_to_date=known is not None)
    except EngineError as error:
        raise BuildError(f"{name}: {error}") from None
    except OSError as error:
        raise BuildError(f"{error.filename or out}: {error.strerror}") from None


class _Build:
    """One model on its way to an engine."""

    def __init__(
        self,
        name: str,
        model: OnnxModel,
        out: Path,
        rebuild: str,
        machine: str,
        profile: bool,
        tell: Progress,
        force: bool,
    ) -> None:
        self._name, self._model, self._out, self._with_profile = name, model, out, profile
        self._tell, self._force = tell, force
        runtime = choose_runtime(model.engine)
        if profile and not runs_here(runtime):
            raise BuildError(f"--profile: {runtime} needs a GPU to be measured on, and none is here")
        if runtime in TENSORRT:  # what cannot be compiled is told before minutes are spent on precision
            tensorrt.check(runtime, model.engine.compute_capability)
        gpu = compute_capability() if runtime in TENSORRT else None
        self._machine = f"{machine}, GPU of compute capability {gpu}" if gpu else machine
        self._exported = exported(model, tell, force=force)
        self._base = base_stamp(name, model, self._exported, runtime, rebuild)
        # Prepared on the CPU, so that both sides of the gate compute on the same arrays; padding changes no result.
        plain = replace(self._base, runtime="onnxruntime", batch_buckets=(), length_buckets=())
        prepare = preparation(plain, self._exported.folder)
        self._precisions = Precisions(self._exported, model, prepare, tell, force)
        self._key = key_of(self._facts())

    def _facts(self) -> Mapping[str, Any]:
        """Everything that goes into the engine."""
        runtime = self._base.runtime
        return {
            "exported": self._exported.facts,
            "model": self._model.model_dump(exclude={*SERVING, "calibration", "evaluation"}, mode="json"),
            "data": self._precisions.data_digests,
            "runtime": runtime,
            "tools": self._base.tools,
            "flavour": tensorrt.version(runtime) if runtime in TENSORRT else None,
            "machine": self._machine,
        }

    def already(self) -> Built | None:
        """The engine in `out`, when it was built from just this and is whole."""
        try:
            stamp = Stamp.read(self._out)
            if stamp.build_key != self._key or (self._with_profile and stamp.profile not in stamp.files):
                return None
            stamp.check_files(self._out)
            return built_from(stamp, self._out)
        except (EngineError, ValueError, KeyError):  # the last two of a report that was edited
            return None

    def make(self) -> Built:
        """Build, choose and put in place."""
        first = self._precisions.candidate(self._model.precision)
        self._refuse(first, first.score)
        candidates = [first, *map(self._precisions.candidate, BELOW[first.precision][1:])]
        passed = [c for c in candidates if c.score.passed]
        engines = {c.precision: runnable(c, self._base, self._model, self._tell, self._force) for c in passed}
        scores = {c.precision: self._scored(engines[c.precision]) if c.score.passed else c.score for c in candidates}
        self._refuse(first, scores[first.precision])
        engines = {name: engine for name, engine in engines.items() if scores[name].passed}
        measured = self._measure(engines)
        chosen = choose(list(engines), measured)
        rows = [
            Row(
                precision=c.precision,
                size=engines[c.precision].path.stat().st_size if c.precision in engines else 0,
                score=scores[c.precision],
                latencies=tuple(measured.get(c.precision, ())),
                verdict=verdict(c, scores[c.precision], chosen, measured),
                notes=c.notes,
            )
            for c in candidates
        ]
        return self._place(engines[chosen], rows, measured.get(chosen, []))

    def _refuse(self, asked: Candidate, score: Score) -> None:
        """Raise BuildError when what was asked for failed and nothing may take its place."""
        if not score.passed and self._model.on_gate_failure == "fail":
            told = "; ".join((score.reason, *asked.notes))
            raise BuildError(f"{self._name}: {asked.precision} does not pass the gate: {told}")

    def _scored(self, engine: Runnable) -> Score:
        """A plan is judged again where it can run: its kernels are not onnxruntime's."""
        candidate, runtime = engine.candidate, self._base.runtime
        if candidate.precision == "fp32" or runtime not in TENSORRT or not runs_here(runtime):
            return candidate.score
        return self._precisions.judged(engine.session())

    def _measure(self, engines: Mapping[str, Runnable]) -> dict[str, list[Latency]]:
        """Latency by precision and batch, where the engines run here; empty elsewhere."""
        if not runs_here(self._base.runtime):
            return {}
        length = self._precisions.typical_length
        facts = {
            "engines": {name: [engine.candidate.facts, engine.path.parent.name] for name, engine in engines.items()},
            "runtime": self._base.runtime,
            "tools": self._base.tools,
            "machine": self._machine,
            "shapes": [length, self._model.max_batch_size],
        }

        def make(scratch: Path) -> dict[str, Any]:
            shapes = [(batch, length) for batch in batches(self._model.max_batch_size)]
            sessions = {name: engine.session() for name, engine in engines.items()}
            found = measure(sessions, shapes, self._inputs, self._tell)
            return {name: as_json(rows) for name, rows in found.items()}

        _, result = stage("latency", facts, make, force=self._force)
        return {name: [Latency(**row) for row in rows] for name, rows in result.items()}

    def _run_cost(self, measured: Sequence[Latency]) -> tuple[float, float] | None:
        """What a run of texts costs, by batches of the typical length."""
        times = [(row.batch * row.length, row.p50) for row in measured if row.length]
        return fit(times) if times else None

    def _inputs(self, batch: int, length: int) -> Mapping[str, Any]:
        return constant_inputs(self._exported.inputs, batch, length or 8)

    def _place(self, engine: Runnable, rows: Sequence[Row], measured: Sequence[Latency]) -> Built:
        """New files beside the old ones, then the stamp over the old one, then without the old files."""
        knee_at = knee_of(measured) if measured else None
        with scratch_in(self._out, 2 * engine.path.stat().st_size) as scratch:
            file = _copy(engine.path, scratch, "model")
            tokenizer = _copy(self._exported.tokenizer, scratch, "tokenizer") if self._exported.tokenizer else ""
            stamp = replace(
                engine.stamp,
                precision=engine.candidate.precision,
                file=file,
                tokenizer=tokenizer,
                files={name: digest(scratch / name) for name in (file, tokenizer) if name},
                build_key=self._key,
                run_cost=self._run_cost(measured),
                gate={"asked": self._model.precision, "rows": [asdict(row) for row in rows], "knee": knee_at},
            )
            stamp.write(scratch)  # with it, what lies there is an engine
            if self._with_profile:
                stamp = self._profiled(replace(engine, stamp=stamp), scratch)
                stamp.write(scratch)
            swap(scratch, self._out, FILE, stamp.files, _files_of(self._out))
        return built_from(Stamp.read(self._out), self._out)

    def _profiled(self, engine: Runnable, scratch: Path) -> Stamp:
        """The stamp of the engine in `scratch`, its profile written there."""
        items = self._precisions.evaluation
        found = profile(engine, scratch, self._precisions.typical_length, items, self._inputs, self._tell)
        told = {"machine": self._machine, "run_cost": engine.stamp.run_cost, **found}
        (scratch / PROFILE).write_text(json.dumps(told, indent=1) + "\n")
        name = _copy(scratch / PROFILE, scratch, "profile")
        return replace(engine.stamp, profile=name, files={**engine.stamp.files, name: digest(scratch / name)})


def _copy(path: Path, scratch: Path, name: str) -> str:
    """Copy under a name of its own, so that files of two builds can lie beside each other."""
    target = scratch / f"{name}-{digest(path)[:8]}{path.suffix}"
    target.write_bytes(path.read_bytes())
    return target.name


def _files_of(out: Path) -> list[str]:
    """Of every build, those of one that was killed while it put them in place among them."""
    kinds = ("model-*.onnx", "model-*.plan", "tokenizer-*.json", "profile-*.json")
    return [path.name for kind in kinds for path in out.glob(kind)]
