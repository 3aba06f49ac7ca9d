"""Generated configurations in the real Triton: every one loads, and what the server says of it is what was planned.

Plans are enumerated, and what a plan means is written here a second time. All of them are models of one server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from plans import chat, embed, plan
from repositories import generate
from serving import ROOT, Serving, serve, tensor, wait_for

from config_gen.batching import Batching, QueuePolicy
from config_gen.plan import Knob, ModelPlan, Plan, Tensor, WarmUp
from config_gen.triton.model_config import proto
from gapless.tritonserver import find_server

MODELS = ROOT / "tests" / "models"
SECOND, MS, US = 10**9, 10**6, 10**3
X, Y = Tensor("x", "TYPE_FP32", (4,)), Tensor("y", "TYPE_FP16", (2, 3))
KINDS = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
PATIENT, SHORT = QueuePolicy(10 * SECOND, "delay", 64), QueuePolicy(500 * US, "reject", 1)
LEVELS: list[tuple[QueuePolicy, ...]] = [(), (QueuePolicy(),), (SHORT, PATIENT), (PATIENT, QueuePolicy(), SHORT)]
TRICKY = 'it\'s "so"\n# max_batch_size: 3\n}\0 \\ ünï 日本 \u2028 { parameters'


def batchable() -> list[ModelPlan]:
    """Every combination of sizes, waiting and levels; the rest of what can be set goes round among them."""
    more: Iterator[dict[str, Any]] = cycle(
        [
            {},
            {"response_cache": True},
            {"warm_up": WarmUp(1, (X,))},
            {"rate_limit": {"card": 1}},
            {"parameters": {"why": TRICKY, "": "", "\t": "\x7f"}},
        ]
    )
    found = []
    for at, (sizes, delay, levels) in enumerate(
        product([(1, ()), (8, ()), (32, (4, 32))], [0, 1500 * US, 2 * SECOND], LEVELS)
    ):
        largest, preferred = sizes
        default = PATIENT if at % 2 else QueuePolicy()
        batching = Batching(largest, 1 + (at % 7 == 3), delay, preferred, levels, max(1, len(levels)), default)
        knobs = (Knob("max_batch_size", str(largest), TRICKY), Knob("no.such.field", TRICKY, TRICKY))
        found.append(embed(f"b{at}", inputs=(X,), outputs=(Y,), batching=batching, knobs=knobs, **next(more)))
    typed = tuple(Tensor(f"t{kind}", f"TYPE_{kind}", (-1, 2), optional=at > 0) for at, kind in enumerate(KINDS))
    found.append(embed("types", inputs=typed, outputs=typed))
    found.append(embed("strings.and-more_", inputs=(Tensor("s", "TYPE_STRING", (1,)),), outputs=(Y,)))
    found.append(embed("unbatched", inputs=(X,), outputs=(Y,), batching=None))
    warm = WarmUp(3, (X, Tensor("s", "TYPE_STRING", (2,)), Tensor("i", "TYPE_INT64", (5,))))
    found.append(embed("warm", inputs=warm.inputs, outputs=(Y,), warm_up=warm))
    return found


def llms(weights: Path) -> list[ModelPlan]:
    """LLMs over an executor that draws by rule; it gets parameters that it does not read, too."""
    needed = {"step_seconds": "0.0", "tokenizer": str(weights)}
    tiers = '{"interactive": {"weight": 8, "queue_timeout_ms": 2000}, "bätch": {"idle_below": 0.4}}'
    some = ({}, {"tiers": tiers, "weights": "fp32", "device": "cpu"}, {"max_num_seqs": "32", "step_log": "a\\b\"c'd\n"})
    knobs = (Knob("parameters.tiers", tiers, TRICKY), Knob("dynamic_batching.priority_levels", "", "the LLM shares"))
    return [chat(f"llm{at}", parameters=needed | one, knobs=knobs) for at, one in enumerate(some)]


def built(repository: Path, wanted: Plan) -> Path:
    """The repository of a plan, with a model under each configuration."""
    generate(repository, wanted)
    for model in wanted.models:
        kind = "zeros" if model.batching or model.parameters is None else "scripted"
        (repository / model.name / "1").mkdir()
        shutil.copy(MODELS / kind / "model.py", repository / model.name / "1")
    return repository


@pytest.fixture(scope="module")
def wanted(smollm2_dir: Path) -> Plan:
    flags = (Knob("--cache-config", "local,size=1048576", "small"), Knob("--rate-limit-resource", "card:2", "two"))
    return plan(*batchable(), *llms(smollm2_dir), flags=flags)


@pytest.fixture(scope="module")
def serving(wanted: Plan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("real")
    with serve(built(folder / "repository", wanted), folder, model="llm0") as serving:
        yield serving


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(f"127.0.0.1:{serving.facts['grpc_port']}") as client:
        yield client


def meant(model: ModelPlan) -> dict[str, Any]:
    """What a server should say of a planned model, in the plan's words."""
    batching = model.batching
    found: dict[str, Any] = {
        "name": model.name,
        "backend": "python",
        "largest": batching.max_batch_size if batching else 0,
        "inputs": [(t.name, t.data_type, t.dims, t.optional) for t in model.inputs],
        "outputs": [(t.name, t.data_type, t.dims) for t in model.outputs],
        "groups": [(batching.instances if batching else 1, "KIND_CPU", (), dict(model.rate_limit or {}))],
        "decoupled": model.parameters is not None and batching is None,
        "parameters": dict(model.parameters or {}),
        "cached": model.response_cache,
        "warm": model.warm_up
        and (model.warm_up.batch_size, {t.name: (t.data_type, t.dims, True) for t in model.warm_up.inputs}),
        "batching": None,
    }
    if batching:
        found["batching"] = {
            "delay": batching.delay // US,
            "preferred": batching.preferred or (batching.max_batch_size,),
            "levels": len(batching.levels),
            "default": batching.default_level if batching.levels else 0,
            "policies": {at: policy(each) for at, each in enumerate(batching.levels, 1)},
            "otherwise": policy(batching.default_policy),
        }
    return found


def policy(of: QueuePolicy) -> tuple[str, int, int]:
    return of.action.upper(), 0 if of.timeout is None else of.timeout // US, of.max_queue or 0


def reported(config: Any) -> dict[str, Any]:
    """The same of a configuration as the server gives it."""

    def kind(tensor: Any) -> str:
        return str(proto().DataType.Name(tensor.data_type))

    def told(of: Any) -> tuple[str, int, int]:
        action = "DELAY" if of.timeout_action else "REJECT"
        return action, of.default_timeout_microseconds, of.max_queue_size

    batching, warm = config.dynamic_batching, config.model_warmup
    return {
        "name": config.name,
        "backend": config.backend,
        "largest": config.max_batch_size,
        "inputs": [(t.name, kind(t), tuple(t.dims), t.optional) for t in config.input],
        "outputs": [(t.name, kind(t), tuple(t.dims)) for t in config.output],
        "groups": [
            (g.count, g.Kind.Name(g.kind), tuple(g.gpus), {r.name: r.count for r in g.rate_limiter.resources})
            for g in config.instance_group
        ],
        "decoupled": config.model_transaction_policy.decoupled,
        "parameters": {key: value.string_value for key, value in config.parameters.items()},
        "cached": config.response_cache.enable,
        "warm": (
            warm[0].batch_size,
            {name: (kind(t), tuple(t.dims), t.zero_data) for name, t in warm[0].inputs.items()},
        )
        if warm
        else None,
        "batching": {
            "delay": batching.max_queue_delay_microseconds,
            "preferred": tuple(batching.preferred_batch_size),
            "levels": batching.priority_levels,
            "default": batching.default_priority_level,
            "policies": {at: told(of) for at, of in batching.priority_queue_policy.items()},
            "otherwise": told(batching.default_queue_policy),
        }
        if config.HasField("dynamic_batching")
        else None,
    }


def test_every_plan_loads_and_is_served_as_it_was_meant(wanted: Plan, client: grpcclient.InferenceServerClient) -> None:
    assert len(wanted.models) >= 40
    states = {entry.name: entry.state for entry in client.get_model_repository_index().models}
    assert states == {model.name: "READY" for model in wanted.models}
    for model in wanted.models:
        assert reported(client.get_model_config(model.name).config) == meant(model), model.name


def test_a_model_of_many_settings_answers_whatever_priority_a_client_gives(
    client: grpcclient.InferenceServerClient,
) -> None:
    x = tensor("x", np.ones((1, 4), np.float32))
    for model, priority in product(("b2", "b7", "b11"), (0, 1, 3, 9)):  # a level that is not there is the default
        assert wait_for(partial(answered, client, model, x, priority)).as_numpy("y").shape == (1, 2, 3)


def answered(
    client: grpcclient.InferenceServerClient, model: str, x: grpcclient.InferInput, priority: int
) -> grpcclient.InferResult | None:
    """None where the half millisecond of a level was over before a busy machine came to it."""
    try:
        return client.infer(model, [x], priority=priority)
    except grpcclient.InferenceServerException as error:
        assert "Request timeout expired" in str(error)
        return None


def test_a_cached_answer_comes_without_the_model(client: grpcclient.InferenceServerClient) -> None:
    x = tensor("x", np.full((1, 4), 3, np.float32))
    before = client.get_inference_statistics("b1").model_stats[0]
    for _ in range(5):
        client.infer("b1", [x])
    after = client.get_inference_statistics("b1").model_stats[0]
    hits = after.inference_stats.cache_hit.count - before.inference_stats.cache_hit.count
    assert (hits, after.execution_count - before.execution_count) == (4, 1)


def test_the_flags_that_the_configurations_need_are_given(serving: Serving) -> None:
    """Rate limits count only with a flag; the server's own table of options says what it took."""
    given = Path(f"/proc/{serving.facts['server_pid']}/cmdline").read_text().split("\0")
    assert {"--rate-limit=execution_count", "--rate-limit-resource=card:2", "--cache-config=local,size=1048576"} <= set(
        given
    )
    assert "--metrics-config=summary_latencies=true" in given
    assert given.count("--model-control-mode=explicit") == 1 and given.count("--load-model=llm0") == 1


GPU_PLANS = [
    embed("one", gpus=(97,), inputs=(X,), outputs=(Y,)),
    embed("two", gpus=(98, 99), inputs=(X,), outputs=(Y,), batching=Batching(8, 2, MS, (4,), LEVELS[3], 2)),
    embed("limited", gpus=(96,), inputs=(X,), outputs=(Y,), rate_limit={"card": 1}, response_cache=True),
    embed("unbatched", gpus=(95,), inputs=(X,), outputs=(Y,), batching=None),
]


def test_a_plan_for_cards_that_are_not_here_is_refused_for_that_alone(tmp_path: Path) -> None:
    """As a plain tritonserver takes it: the words of the file of flags are put behind its command by the shell."""
    on_cpu = [replace(model, name=f"{model.name}-cpu", gpus=()) for model in GPU_PLANS]
    repository = built(tmp_path / "repository", plan(*GPU_PLANS, *on_cpu))
    server = find_server({name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")})
    command = [*server.command, f"--model-repository={repository}", "--exit-on-error=false", "--allow-http=false"]
    command += ["--allow-grpc=false", "--allow-metrics=false"]
    log = tmp_path / "triton.log"
    script = f'exec "$@" $(grep -v "^#" {repository}/serve.args)'
    with log.open("wb") as sink:
        process = subprocess.Popen(
            ["sh", "-c", script, "sh", *command], stdout=sink, stderr=subprocess.STDOUT, env=dict(server.environment)
        )
    try:
        wait_for(lambda: "| Model " in log.read_text() and "server_id" in log.read_text(), 60)
    finally:
        process.terminate()
        process.wait(40)
    told = log.read_text()
    for model in on_cpu:
        assert re.search(rf"\| {model.name} +\| 1 +\| READY", told), told
    refused = dict(re.findall(r"of model (\S+) specifies invalid or unsupported gpu id (\d+)", told))
    assert refused == {"one": "97", "two": "98", "limited": "96", "unbatched": "95"}, told
    assert not re.search(r"\| (one|two|limited|unbatched) +\| 1 +\| READY", told)
