"""Plans of many SLA files as repositories: every one parses, lints clean, loads, and is served as it was meant."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import engine
from repositories import generate
from serving import serve
from specs import TIERS, cpu_specs, gpu_specs
from test_generate_real import MODELS, meant, reported

from config_gen.lint.findings import judge
from config_gen.lint.repository import read
from config_gen.plan import Plan
from config_gen.planning.plans import plan
from config_gen.sla.spec import parse as parse_spec
from config_gen.triton.config_text import commented
from config_gen.triton.model_config import parse
from config_gen.triton.triton_config import config
from gapless.tritonserver import find_server


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """Of every file without cards: the cheapest that holds, or the nearest."""
    return [plan(spec, facts, advice=False) for spec, facts in cpu_specs()]


def built(folder: Path, found: Plan) -> Path:
    """A repository of the plan, with a small Python model under each configuration: only loading is asked of it."""
    generate(folder, found)
    for model in found.models:
        (folder / model.name / "1").mkdir()
        shutil.copy(MODELS / "zeros" / "model.py", folder / model.name / "1")
    return folder


def complaints(folder: Path) -> list[str]:
    return [f"{one.rule.id} {one.spot}" for one in judge(read(folder)) if one.rule.severity != "note"]


def test_there_are_forty_files_and_most_can_be_kept(plans: list[Plan]) -> None:
    assert len(plans) >= 39 and len(gpu_specs()) >= 4
    assert sum(found.held for found in plans) > len(plans) / 2


def test_every_plan_lints_clean_and_its_text_is_what_was_meant(plans: list[Plan], tmp_path: Path) -> None:
    for at, found in enumerate([*plans, *(plan(spec, facts, advice=False) for spec, facts in gpu_specs())]):
        folder = built(tmp_path / str(at), found)
        assert complaints(folder) == []
        for model in found.models:
            assert parse((folder / model.name / "config.pbtxt").read_text()) == config(model)


def test_every_plan_loads_in_the_real_triton_and_is_reported_as_it_was_meant(plans: list[Plan], tmp_path: Path) -> None:
    models = tuple(model for found in plans for model in found.models)
    flags = tuple({flag.name: flag for found in plans for flag in found.flags}.values())
    folder = built(tmp_path / "repository", Plan(models, (), 0, flags))
    with (
        serve(folder, tmp_path, model=models[0].name) as serving,
        grpcclient.InferenceServerClient(f"127.0.0.1:{serving.facts['grpc_port']}") as client,
    ):
        states = {entry.name: entry.state for entry in client.get_model_repository_index().models}
        assert states == {model.name: "READY" for model in models}
        for model in models:
            assert reported(client.get_model_config(model.name).config) == meant(model), model.name


def refusal(folder: Path) -> str:
    """What tritonserver says on its way out."""
    server = find_server()
    ports = [f"--allow-{kind}=false" for kind in ("http", "grpc", "metrics")]
    words = [*server.command, f"--model-repository={folder}", *ports]
    done = subprocess.run(words, env=server.environment, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def test_plans_for_cards_that_are_not_here_are_refused_for_the_card_alone(tmp_path: Path) -> None:
    for at, (spec, facts) in enumerate(gpu_specs()):
        found = plan(spec, facts, advice=False)
        cards = {card for model in found.models for card in model.gpus}
        assert cards and cards <= set(range(4))
        if at == 0:
            said = refusal(built(tmp_path / "repository", found))
            named = set(re.findall(r"invalid or unsupported gpu id (?:of )?(\d+)", said))
            assert named and named <= {str(card) for card in cards}, said[-2000:]
            # The same on the CPU has nothing else that Triton would refuse.
            twin = replace(found, models=tuple(replace(model, gpus=()) for model in found.models))
            folder = built(tmp_path / "twin", twin)
            with serve(folder, tmp_path, model=twin.models[0].name):
                pass


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(TIERS),
    st.floats(1, 600),
    st.integers(10, 2000),
    st.integers(1, 4),
    st.integers(1, 64),
    st.sampled_from(["", "instances: 2", "queue_delay: 2ms", "response_cache: {repeats: 10%, size: 4MiB}"]),
)
def test_any_plan_is_a_configuration_that_triton_can_parse(
    tiers: str, rate: float, target: int, cores: int, largest: int, more: str
) -> None:
    text = f"""
gapless: 1
hardware: {{cores: {cores}}}
tiers: {tiers}
models:
  any:
    kind: onnx
    source: wheel:some
    max_batch_size: {largest}
    targets: {{interactive: {{e2e: {target}ms}}}}
    traffic: {{interactive: {{rate: {rate:.3f}/s, length: {{median: 30, p95: 90}}}}}}
"""
    spec = parse_spec(text + (f"    {more}\n" if more else ""))
    found = plan(spec, {"any": engine(cores=cores)}, advice=False)
    [model] = found.models
    assert parse(commented(config(model), model.knobs)) == config(model)
    assert model.batching is not None and model.batching.max_batch_size <= min(largest, 32)
    assert all(size <= model.batching.max_batch_size for size in model.batching.preferred)
    assert bool(model.batching.levels) <= (model.batching.instances > 1)
