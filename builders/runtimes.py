"""From a candidate to what runs it: the graph itself for onnxruntime, a compiled plan for a flavour of TensorRT.

Must not know precision or the gate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builders import compile as tensorrt
from builders.compile import Options, Profile
from builders.latency import batches
from builders.precisions import Candidate
from builders.progress import Progress
from builders.sources import Exported, versions
from builders.stages import stage
from config_gen.sla.spec import Engine as Asked
from config_gen.sla.spec import OnnxModel
from engines.cpu import adds_int8_exactly
from engines.session import Session, session_on
from engines.stamp import TENSORRT, Stamp, compute_capability

SHORTEST = 16  # tokens: the smallest length that a fixed shape is made for
WIDE = 4  # largest over smallest length of one optimization profile, beyond which another is made


@dataclass(frozen=True, slots=True)
class Runnable:
    """A candidate and the file that runs; `stamp` lacks what is known only once it is chosen."""

    candidate: Candidate
    path: Path
    stamp: Stamp

    def session(self, threads: int = 0) -> Session:
        """On the CPU with so many threads, 0 is one for each core."""
        return session_on(self.stamp, self.path, threads)


def choose_runtime(asked: Asked) -> str:
    """What the SLA file says, or what fits this machine best."""
    if asked.runtime != "auto":
        return asked.runtime
    here = compute_capability()
    if here is not None:
        for flavour in TENSORRT:
            if tensorrt.builds_for(flavour, here):
                return flavour
    return "onnxruntime"


def runs_here(runtime: str) -> bool:
    return runtime not in TENSORRT or compute_capability() is not None


def base_stamp(name: str, model: OnnxModel, exported: Exported, runtime: str, rebuild: str) -> Stamp:
    """What is known before a precision is chosen."""
    fixed, texts = runtime in TENSORRT, exported.feed.kind == "text"
    return Stamp(
        model=name,
        source=model.source,
        source_hash=exported.source_hash,
        precision="fp32",
        runtime=runtime,
        file=exported.graph.name,
        feed=exported.feed,
        inputs=exported.inputs,
        outputs=exported.outputs,
        max_batch_size=model.max_batch_size,
        tools=versions(("onnxruntime", "torch")),
        files={},
        rebuild=rebuild,
        build_key="",
        exact_int8=adds_int8_exactly(),
        tokenizer=exported.tokenizer.name if exported.tokenizer else "",
        batch_buckets=tuple(batches(model.max_batch_size)) if fixed else (),
        length_buckets=length_buckets(exported.feed.max_length) if fixed and texts else (),
    )


def length_buckets(longest: int) -> tuple[int, ...]:
    """Lengths that texts are padded to where every shape is compiled: powers of two, and the longest."""
    return (*(n for n in batches(longest) if SHORTEST <= n < longest), longest)


def optimization_profiles(largest: int, longest: int) -> tuple[Profile, ...]:
    """One over all batches; several over lengths where those are wide, so that short texts get kernels of their own."""
    batch = (1, min(8, largest), largest)
    if not longest:
        return (Profile(batch),)
    tops = [longest]
    while tops[0] // WIDE >= SHORTEST:
        tops.insert(0, tops[0] // WIDE)
    return tuple(Profile(batch, (1, max(1, top // 2), top)) for top in tops)


def runnable(candidate: Candidate, base: Stamp, model: OnnxModel, tell: Progress, force: bool) -> Runnable:
    """What runs of a candidate; a plan is compiled once. Raises BuildError."""
    runtime = base.runtime
    if runtime not in TENSORRT:
        return Runnable(candidate, candidate.served, base)
    options = Options(**{name: value for name, value in dict(model.engine).items() if name != "runtime"})
    profiles = optimization_profiles(model.max_batch_size, base.feed.max_length)
    facts = {
        "graph": candidate.facts,
        "flavour": tensorrt.version(runtime),
        "target": tensorrt.target(runtime, options.compute_capability),
        "options": asdict(options),
        "profiles": [asdict(profile) for profile in profiles],
    }

    def make(scratch: Path) -> dict[str, Any]:
        tell(f"compiling {candidate.precision} with {runtime}", 0, 0)
        cache = scratch.parent.parent / f"timing-{runtime}.cache"
        plan = tensorrt.compile_plan(runtime, candidate.typed.read_bytes(), base.inputs, profiles, options, cache)
        (scratch / "model.plan").write_bytes(plan.plan)
        return {"version": plan.version, "for": plan.compute_capabilities}

    folder, result = stage("plan", facts, make, force=force)
    portable = {"version": options.version_compatible, "hardware": options.hardware_compatible}
    stamp = replace(
        base,
        tools={**base.tools, runtime: result["version"]},
        compute_capabilities=tuple(result["for"]),
        portable=tuple(name for name, on in portable.items() if on),
        profiles=tuple(asdict(profile) for profile in profiles),
    )
    return Runnable(candidate, folder / "model.plan", stamp)
