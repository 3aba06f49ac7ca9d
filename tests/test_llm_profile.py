"""`gapless build --profile` of an LLM: the law of a step beside the model, from requests as the file declares them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import tiny_models
import yaml

from builders.llm import build_llm
from config_gen.sla.spec import LlmModel
from decode.executors.cost_model import Measured
from decode.executors.gpu_cost import StepWork
from gapless import llm_profile
from gapless.llm_profile import LAW, drawn, profile

TRAFFIC = {
    "a": {"rate": "3/s", "prompt": {"median": 20, "p95": 40}, "output": {"median": 6, "p95": 12}, "shared_prefix": 30},
    "b": {"rate": "1/s", "prompt": {"median": 40, "p95": 80}, "output": {"median": 12, "p95": 24}},
}


def model(**fields: Any) -> LlmModel:
    return LlmModel.model_validate({"kind": "llm", "source": "hf:any", "max_model_len": 256, **fields})


@pytest.fixture
def built(tmp_path: Path) -> Path:
    source = tiny_models.save_hf(tiny_models.random_model("llama"), tmp_path / "hf")
    build_llm(f"hf:{source}", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few requests that a law can be fitted just so; how good it is on such a small model is left to chance."""
    monkeypatch.setattr(llm_profile, "MOST", llm_profile.FEWEST)
    monkeypatch.setattr(llm_profile, "POOR", 99.0)


def test_requests_are_drawn_as_the_file_declares_them() -> None:
    requests = list(islice(drawn(model(traffic=TRAFFIC), 256, 300), 400))
    assert requests == list(islice(drawn(model(traffic=TRAFFIC), 256, 300), 400))
    assert all(0 <= token < 300 for request in requests for token in request.prompt)
    tiers = {tier: [r for r in requests if r.id.startswith(f"{tier}-")] for tier in "ab"}
    assert 2 < len(tiers["a"]) / len(tiers["b"]) < 4.5
    assert 30 < median(len(request.prompt) for request in tiers["b"]) < 50
    assert 5 <= median(request.sampling.max_tokens for request in tiers["a"]) <= 7
    first = [request.prompt[:30] for request in tiers["a"] if request.id.endswith(("1", "3", "5", "7", "9"))]
    assert len(set(first)) == 1 and len(first) > 100  # the system prompt, which every second request has
    others = {request.prompt[:10] for request in tiers["b"]}
    assert len(others) == len(tiers["b"])
    assert all(len(r.prompt) + r.sampling.max_tokens <= 256 and r.sampling.ignore_eos for r in requests)


def test_a_model_that_nothing_is_sent_to_gets_plain_requests() -> None:
    assert all(len(r.prompt) > 0 and r.sampling.max_tokens > 0 for r in islice(drawn(model(), 256, 300), 50))


@pytest.mark.usefixtures("quick")
def test_a_law_is_measured_once_and_again_when_something_changed(built: Path, tmp_path: Path) -> None:
    declared = model(traffic=TRAFFIC)
    found, known = profile(declared, built)
    assert not known and found == Measured.read(built / LAW)
    assert (found.weights, found.run.requests) == ("fp32", llm_profile.FEWEST) and found.built
    assert found.law.step(StepWork(decodes=8, context_tokens=400, draws=8)) > 0
    before = (built / LAW).read_bytes()
    assert profile(declared, built) == (found, True) and (built / LAW).read_bytes() == before
    assert not profile(declared, built, force=True)[1]
    assert not profile(model(traffic=TRAFFIC, weights="bf16"), built)[1]
    assert Measured.read(built / LAW).weights == "bf16"
    (built / LAW).write_text("{")
    assert not profile(declared, built)[1]
    other = tiny_models.save_hf(tiny_models.random_model("qwen3"), tmp_path / "other")
    build_llm(f"hf:{other}", built)
    assert not profile(declared, built)[1]
    assert sorted(path.name for path in built.iterdir() if "law" in path.name) == [LAW]


@pytest.mark.usefixtures("quick")
def test_what_is_pinned_is_what_is_measured(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    true = llm_profile.bench.measure

    def noted(work: Any, config: Any, *more: Any) -> Any:
        limits.append((config.max_num_seqs, config.max_num_batched_tokens))
        return true(work, config, *more)

    monkeypatch.setattr(llm_profile.bench, "measure", noted)
    profile(model(traffic=TRAFFIC, max_num_seqs=300, kv_cache_memory="64MiB"), built)
    assert limits == [(1, 300), (4, 300), (300, 300), (300, 300)]  # the last one checks the law


def gapless(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gapless", "build", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def written(folder: Path, **top: Any) -> None:
    source = tiny_models.save_hf(tiny_models.random_model("llama"), folder / "hf")
    declared = {"kind": "llm", "source": f"hf:{source}", "max_model_len": 256, "traffic": TRAFFIC}
    raw = {"gapless": 1, "tiers": {"a": {}, "b": {}}, "models": {"chat": declared}, **top}
    (folder / "sla.yaml").write_text(yaml.safe_dump(raw))


def test_the_command_measures_tells_and_writes_a_summary(tmp_path: Path) -> None:
    written(tmp_path)
    plain = gapless(tmp_path, "--sla", "sla.yaml", "--json", "plain.json")
    version = tmp_path / "model_repository" / "chat" / "1"
    assert plain.returncode == 0 and not (version / LAW).exists()
    assert "law" not in json.loads((tmp_path / "plain.json").read_text())["models"]["chat"]
    done = gapless(tmp_path, "--sla", "sla.yaml", "--profile", "--json", "out.json")
    assert done.returncode == 0, done.stderr
    found = Measured.read(version / LAW)
    told = json.loads((tmp_path / "out.json").read_text())["models"]["chat"]["law"]
    assert told["fit"] == found.law.fit._asdict() and told["up_to_date"] is False
    assert "chat: law of a step" in done.stdout and "at the median" in done.stdout
    off(version / LAW, 0.02)
    again = gapless(tmp_path, "--sla", "sla.yaml", "--profile")
    assert again.returncode == 0 and "law of a step, up to date" in again.stdout
    off(version / LAW, 0.5)
    poor = gapless(tmp_path, "--sla", "sla.yaml", "--profile")
    assert poor.returncode == 0 and "law of a step, written" in poor.stdout


def off(law: Path, median: float) -> None:
    """As if the law had been found to be so far off."""
    raw = json.loads(law.read_text())
    raw["law"]["fit"]["median"] = median
    law.write_text(json.dumps(raw))


def test_steps_of_gpus_that_are_not_here_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    written(tmp_path, hardware={"gpus": [{"type": "t4"}]})
    done = gapless(tmp_path, "--sla", "sla.yaml", "--profile")
    assert done.returncode == 0 and "steps are not measured: hardware.gpus names GPUs, and none is here" in done.stdout
    assert not (tmp_path / "model_repository" / "chat" / "1" / LAW).exists()


def test_a_model_that_takes_fewer_tokens_is_one_line_and_status_2(tmp_path: Path) -> None:
    written(tmp_path)
    text = (tmp_path / "sla.yaml").read_text().replace("max_model_len: 256", "max_model_len: 100000")
    (tmp_path / "sla.yaml").write_text(text)
    done = gapless(tmp_path, "--sla", "sla.yaml", "--profile")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "max_model_len: 100000 is not allowed; the model was made for at most 512" in done.stderr
