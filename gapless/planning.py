"""What `gapless plan` and the commands after it share: facts of the built models, read from the repository, and a plan.

Wires the rooms; holds no policy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builders.llm import built_from
from config_gen.facts import Correction, Facts, LlmFacts, OnnxFacts
from config_gen.plan import Plan
from config_gen.planning.planner import Tell, quiet
from config_gen.planning.plans import plan
from config_gen.profile import Profile, ProfileError
from config_gen.sla.spec import LlmModel, OnnxModel, Spec, load
from decode.assembly import ACTIVATIONS, CPU_SWAP_RATE, GPU_SWAP_RATE, KV_BYTES
from decode.executors.cost_model import LawError, Measured
from decode.executors.gpu_cost import GpuError, GpuLaw, ModelShape, gpu_table
from decode.executors.model_config import ModelConfig, ModelError
from decode.options import ServiceOptions
from engines import tensors
from engines.errors import EngineError
from engines.stamp import TENSORRT, Stamp
from gapless.corrections import read as corrections_of
from gapless.engine_plan import planned_tensors
from gapless.errors import UsageError
from gapless.llm_profile import LAW, POOR
from gapless.parts import REPOSITORY

DOUBT = (
    "its law of a step is off by {:.0%} at the median, as of a machine that was busy; build it with --profile again on "
    "an idle one, or let `gapless verify --tune` correct it"
)
CONTEXT = 1434 * 2**20  # bytes of a card that a Python instance costs (seen: about 1.4 GiB, server issue 3560)
WEIGHTS = 2  # times its file: a plan's weights, and what its batches need beside them; an estimate
ON_CARDS = ("bf16", "fp16")  # weights that are served on a card, and that its table has measurements of
PROCESS = 600 * 2**20  # bytes of a Python process with torch, before it holds a weight


def planned(
    sla: Path,
    repository: Path = REPOSITORY,
    corrections: Mapping[str, Correction] | None = None,
    tell: Tell = quiet,
) -> Plan:
    """The plan of a file for the models built in `repository`, by default with the corrections that lie there.

    Raises SpecError, PlanError, UsageError, EngineError, LawError, ModelError or GpuError, one line per mistake.
    """
    spec = load(sla)
    known = facts(spec, sla, repository)
    return plan(spec, known, corrections_of(repository) if corrections is None else corrections, tell)


def facts(spec: Spec, sla: Path, repository: Path) -> dict[str, Facts]:
    """What was measured of every model of the file. Raises as `planned` does, about all models at once."""
    found: dict[str, Facts] = {}
    mistakes: list[str] = []
    for name, model in spec.models.items():
        folder = repository / name / "1"
        try:
            found[name] = _onnx(model, folder) if isinstance(model, OnnxModel) else _llm(spec, model, folder)
        except (EngineError, ProfileError, LawError, ModelError) as error:
            build = f"gapless build {name} --sla {sla} --profile"
            mistakes.append(f"models.{name}: {error}" + ("" if build in str(error) else f"; run {build}"))
        except (UsageError, GpuError) as error:
            mistakes.append(f"models.{name}: {error}")
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return found


def _onnx(model: OnnxModel, folder: Path) -> OnnxFacts:
    stamp = Stamp.read(folder)
    if stamp.source != model.source:
        raise EngineError(f"{folder} holds an engine of {stamp.source}, and the file says {model.source}")
    if stamp.gate.get("asked") != model.precision:
        raise EngineError(
            f"{folder} holds an engine that was asked for in {stamp.gate.get('asked')}, and the file says "
            f"{model.precision}"
        )
    if not stamp.profile:
        raise EngineError(f"{folder} holds an engine whose latency was not measured")
    profile = Profile.read(folder / stamp.profile, stamp.rebuild)
    on_gpu = stamp.runtime in TENSORRT
    return OnnxFacts(
        profile,
        planned_tensors(tensors.inputs(stamp)),
        planned_tensors(tensors.outputs(stamp)),
        stamp.feed.kind,
        stamp.max_batch_size,
        CONTEXT + WEIGHTS * (folder / stamp.file).stat().st_size if on_gpu else profile.memory,
        on_gpu,
        stamp.feed.size,
        stamp.batch_buckets,
        stamp.length_buckets,
    )


def _llm(spec: Spec, model: LlmModel, folder: Path) -> LlmFacts:
    config = ModelConfig.read(folder)
    if (source := built_from(folder)) != model.source:
        raise EngineError(f"{folder} holds a model of {source}, and the file says {model.source}")
    if not spec.hardware.gpus:
        return _on_cpu(model, config, folder)
    types = {gpu.type for gpu in spec.hardware.gpus}
    if len(types) > 1:
        raise UsageError(f"hardware.gpus: {', '.join(sorted(types))} differ; an LLM is planned on cards of one type")
    return _on_card(types.pop(), config, model.weights)


def _on_cpu(model: LlmModel, config: ModelConfig, folder: Path) -> LlmFacts:
    found = Measured.read(folder / LAW)
    if not found.cores:
        raise LawError(f"{folder / LAW} was not measured on a CPU, which the file's hardware is")
    if found.weights != model.weights:
        raise LawError(f"{folder / LAW} was measured with {found.weights} weights, and the file says {model.weights}")
    page = ServiceOptions().page_size * found.kv_bytes_per_token
    return LlmFacts(
        found.law,
        found.kv_bytes_per_token,
        found.max_model_len,
        PROCESS + config.num_parameters * KV_BYTES[model.weights],
        f"measured on {found.machine}",
        cores=found.cores,
        host_memory=found.host_memory,
        swap_page_time=max(1, int(page / CPU_SWAP_RATE)),
        doubt=DOUBT.format(found.law.fit.median) if found.law.fit.median > POOR else "",
        cold=found.cold,
    )


def _on_card(gpu: str, config: ModelConfig, weights: str) -> LlmFacts:
    """Raises GpuError or UsageError for weights that the card has no measurements of, or that are not served there."""
    if weights not in ON_CARDS:
        raise UsageError(f"weights: '{weights}' is not served on a card; allowed: {', '.join(ON_CARDS)}")
    table = gpu_table(gpu)
    law = GpuLaw(table, ModelShape.of(config), weights)
    memory = law.memory()
    page = ServiceOptions().page_size * memory.kv_per_token
    return LlmFacts(
        law,
        memory.kv_per_token,
        config.max_position_embeddings,
        memory.weights + max(memory.reserved, ACTIVATIONS),
        f"{'estimated from the datasheet' if table.raw['estimated'] else 'put together from measured operators'} of a "
        f"{table.name}",
        on_gpu=True,
        swap_page_time=max(1, int(page / GPU_SWAP_RATE)),
    )
