"""ONNX to a TensorRT plan, for `tensorrt` 10 and 11 and `tensorrt_rtx` alike: asks for attributes, never for versions.

What differs between flavours is FLAVOURS. Networks are strongly typed: the graph's own types decide. Must not know the
SLA file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.errors import BuildError
from engines.stamp import TensorSpec, compute_capability


@dataclass(frozen=True, slots=True)
class Flavour:
    """`timing_cache`: it measures kernels, and remembers. `ahead`: it builds without a GPU, for one that is named."""

    timing_cache: bool
    ahead: bool


FLAVOURS = {
    "tensorrt": Flavour(timing_cache=True, ahead=False),
    # Kernels are finished on the device; a timing cache would make it look for one while it builds.
    "tensorrt_rtx": Flavour(timing_cache=False, ahead=True),
}

Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # smallest, best and largest shape


@dataclass(frozen=True, slots=True)
class Profile:
    """Shapes of every input that one optimization profile holds: batch and, for texts, length."""

    batch: tuple[int, int, int]
    length: tuple[int, int, int] | None = None

    def shapes(self, tensor: TensorSpec) -> Range:
        """Smallest, best and largest shape of an input. Raises BuildError when it varies where texts do not."""
        free = 2 if self.length else 1
        if sum(dim < 0 for dim in tensor.shape) > free:
            raise BuildError(
                f"{tensor.name}: {list(tensor.shape)}; TensorRT needs to know what varies: the batch, and the length "
                "of a text"
            )
        made = []
        for at in range(3):
            values = iter([self.batch[at], *([self.length[at]] if self.length else [])])
            made.append(tuple([next(values) if dim < 0 else dim for dim in tensor.shape]))
        return made[0], made[1], made[2]


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile; `compute_capability` empty means the GPU that is here. `workspace` in bytes."""

    compute_capability: tuple[str, ...] = ()
    workspace: int | None = None
    tf32: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan, the versions and the hardware it is for."""

    plan: bytes
    version: str
    compute_capabilities: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def available(flavour: str) -> bool:
    """Whether this flavour is installed."""
    return importlib.util.find_spec(flavour) is not None


def builds_for(flavour: str, capability: str) -> bool:
    """Whether this flavour is installed and builds for such a GPU; where it builds on the GPU itself, it does."""
    if not available(flavour):
        return False
    return not FLAVOURS[flavour].ahead or capability in _known(importlib.import_module(flavour))


def version(flavour: str) -> str:
    """Of the flavour installed here; empty where it is not, or lacks its libraries."""
    try:
        return str(importlib.import_module(flavour).__version__)
    except (ImportError, OSError):
        return ""


def target(flavour: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """The compute capabilities to build for. Raises BuildError when this machine cannot build for them."""
    here = compute_capability()
    if FLAVOURS[flavour].ahead:
        if not wanted and here is None:
            raise BuildError("engine.compute_capability: is missing, and no GPU is here; give some, such as ['8.9']")
        known = _known(_load(flavour))
        for capability in wanted:
            if capability not in known:
                allowed = ", ".join(known)
                raise BuildError(f"engine.compute_capability: {capability} is not allowed for {flavour}; {allowed}")
        return tuple(wanted) or (str(here),)
    if here is None:
        raise BuildError(f"engine.runtime: {flavour} builds on the GPU it is for, and none is here")
    if wanted and tuple(wanted) != (here,):
        raise BuildError(f"engine.compute_capability: {', '.join(wanted)}; allowed: that of the GPU here, {here}")
    return (here,)


def check(flavour: str, wanted: Sequence[str]) -> None:
    """Raise BuildError when a plan for `wanted` could not be compiled here."""
    _load(flavour)
    target(flavour, wanted)


def _load(flavour: str) -> Any:
    try:
        return importlib.import_module(flavour)
    except (ImportError, OSError) as error:  # OSError: a library that it needs cannot be loaded
        raise BuildError(f"engine.runtime: {flavour} is not installed ({error})") from None


def compile_plan(
    flavour: str,
    model: bytes,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[Profile],
    options: Options,
    timing_cache: Path | None = None,
) -> Compiled:
    """Compile an ONNX model. Raises BuildError with TensorRT's own reason."""
    trt = _load(flavour)
    capabilities = target(flavour, options.compute_capability)
    log = _logger(trt)
    builder = trt.Builder(log)
    network = builder.create_network(_flags(trt.NetworkDefinitionCreationFlag, ("STRONGLY_TYPED",)))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(model):
        reasons = [_reason(parser.get_error(at)) for at in range(parser.num_errors)]
        raise BuildError(f"{flavour} cannot read the graph: {'; '.join(reasons[:3])}")
    config = builder.create_builder_config()
    _configure(trt, config, options)
    if FLAVOURS[flavour].ahead:
        _aim(trt, config, capabilities)
    for profile in profiles:
        made = builder.create_optimization_profile()
        for tensor in inputs:
            made.set_shape(tensor.name, *profile.shapes(tensor))
        config.add_optimization_profile(made)
    cache = _cache(config, timing_cache) if FLAVOURS[flavour].timing_cache else None
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BuildError(f"{flavour} cannot compile it: {'; '.join(log.errors[:3]) or 'it gave no reason'}")
    if cache is not None and timing_cache is not None:
        _write_whole(timing_cache, bytes(cache.serialize()))
    return Compiled(
        bytes(plan),
        str(trt.__version__),
        capabilities,
        tuple(network.get_input(at).name for at in range(network.num_inputs)),
        tuple(network.get_output(at).name for at in range(network.num_outputs)),
    )


def _reason(error: Any) -> str:
    """What the parser says, and of which node."""
    node = " ".join(part for part in (error.node_operator(), error.node_name()) if part)
    return f"{node}: {error.desc()}" if node else str(error.desc())


def _flags(kind: Any, names: Sequence[str]) -> int:
    """Bits of those that this version still has."""
    return sum(1 << int(getattr(kind, name)) for name in names if hasattr(kind, name))


def _configure(trt: Any, config: Any, options: Options) -> None:
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    wanted = {"TF32": options.tf32, "VERSION_COMPATIBLE": options.version_compatible}
    for name, on in wanted.items():
        if hasattr(trt.BuilderFlag, name):
            (config.set_flag if on else config.clear_flag)(getattr(trt.BuilderFlag, name))
        elif on:
            raise BuildError(f"engine.{name.lower()}: this version of TensorRT does not have it; allowed: false")
    if options.hardware_compatible:
        if not hasattr(trt, "HardwareCompatibilityLevel"):
            raise BuildError("engine.hardware_compatible: this version of TensorRT does not have it; allowed: false")
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS


def _aim(trt: Any, config: Any, capabilities: Sequence[str]) -> None:
    known = _known(trt)
    config.num_compute_capabilities = len(capabilities)
    for at, capability in enumerate(capabilities):
        config.set_compute_capability(known[capability], at)


def _known(trt: Any) -> dict[str, Any]:
    """Compute capabilities as `8.9`, of what is called SM89."""
    members = trt.ComputeCapability.__members__.items()
    return {f"{name[2:-1]}.{name[-1]}": kind for name, kind in members if name.startswith("SM")}


def _cache(config: Any, path: Path | None) -> Any:
    """What earlier builds measured; a cache of another version or device is left out by TensorRT itself."""
    data = path.read_bytes() if path is not None and path.exists() else b""
    cache = config.create_timing_cache(data)
    config.set_timing_cache(cache, False)
    return cache


def _write_whole(path: Path, data: bytes) -> None:
    """Other builds may read it now, and this one may be killed."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)


def _logger(trt: Any) -> Any:
    class Log(trt.ILogger):
        """Keeps errors, so that they can be told in one line."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(" ".join(message.split()))

    return Log()
