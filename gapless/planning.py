"""From an SLA file and what was built to a plan: so far all on the CPU, as large as may be, with no prediction."""

from __future__ import annotations

from pathlib import Path

from config_gen.batching import Batching
from config_gen.llm_options import options
from config_gen.llm_tensors import INPUTS, OUTPUTS
from config_gen.plan import Knob, ModelPlan, Plan
from config_gen.spec import LlmModel, Spec, load
from engines.stamp import Stamp
from gapless.engine_plan import engine_plan

DELAY = 2_000_000  # ns


def planned(sla: Path, repository: Path) -> Plan:
    """The plan for an SLA file whose models are built in `repository`. Raises SpecError or EngineError."""
    spec = load(sla)
    return Plan(tuple(_model(spec, name, repository / name / "1") for name in spec.models), (), 0)


def _model(spec: Spec, name: str, built: Path) -> ModelPlan:
    declared = spec.models[name]
    if isinstance(declared, LlmModel):
        parameters = {**options(spec, declared), "device": "cpu"}
        knobs = tuple(Knob(f"parameters.{key}", value, "as declared") for key, value in parameters.items())
        return ModelPlan(name, (), INPUTS, OUTPUTS, parameters=parameters, knobs=knobs)
    stamp = Stamp.read(built)
    return engine_plan(name, stamp, Batching(stamp.max_batch_size, delay=DELAY))
