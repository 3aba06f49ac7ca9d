"""Several models in one run, against the real server: an LLM beside models that answer in one piece."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from repositories import PICTURE, add_stand_in, scripted_repository
from serving import Serving, serve

from config_gen.batching import QueuePolicy
from config_gen.plan import Tensor
from config_gen.sla.spec import parse
from gapless.parts import pick_parts
from loadtest import capacity, run
from loadtest.samples import Planned, Sample
from loadtest.schedule import schedule

SECOND = 10**9
ARRAYS = Tensor("values", "TYPE_FP32", (-1, 3))
SLA = """
gapless: 1
tiers: {interactive: {}, batch: {}, bulk: {}}
models:
  scripted:
    kind: llm
    source: wheel:any
    max_model_len: 512
    targets: {interactive: {ttft: 30s, at: p50}}
    traffic: {interactive: {rate: 3/s, prompt: {median: 20, p95: 60}, output: {median: 6, p95: 12}}}
  embed:
    kind: onnx
    source: wheel:any
    targets: {interactive: {e2e: 30s, at: p50}, batch: {e2e: 1ns, at: p50}}
    traffic:
      interactive: {rate: 20/s, length: {median: 20, p95: 60}}
      batch: {rate: 10/s, length: {median: 60, p95: 200}}
  classify:
    kind: onnx
    source: onnx:any
    targets: {interactive: {e2e: 30s, at: p50}}
    traffic: {interactive: {rate: 10/s}}
"""


@pytest.fixture(scope="module")
def serving(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("serving")
    repository = scripted_repository(folder / "repository", smollm2_dir, 0.002)
    add_stand_in(repository, "embed")
    add_stand_in(repository, "classify", PICTURE)
    add_stand_in(repository, "arrays", ARRAYS)
    add_stand_in(repository, "broken")
    add_stand_in(repository, "narrow", seconds=0.3, queue=QueuePolicy(max_queue=8))
    add_stand_in(repository, "leveled", seconds=0.1, levels=(QueuePolicy(), QueuePolicy(max_queue=1)))
    with serve(repository, folder, model="scripted") as found:
        yield found


@pytest.fixture(scope="module")
def url(serving: Serving) -> str:
    return f"127.0.0.1:{serving.facts['grpc_port']}"


def load(url: str, requests: Sequence[Planned], seconds: float = 1) -> list[Sample]:
    return run.run(run.Job(url, requests, int(seconds * SECOND), 30 * SECOND))[0]


def texts(model: str, *said: str, tier: str = "interactive") -> list[Planned]:
    return [Planned(f"{model}-{number}", model, tier, 0, text) for number, text in enumerate(said)]


def test_all_models_of_a_file_are_loaded_together_and_each_request_gives_one_sample(url: str) -> None:
    planned = schedule(pick_parts(parse(SLA), None), 4 * SECOND, 1, 3)
    taken = load(url, planned, 4)
    assert Counter((s.model, s.tier) for s in taken) == Counter((r.model, r.tier) for r in planned)
    assert {s.model for s in taken} == {"scripted", "embed", "classify"}
    assert [(s.id, s.outcome, s.error) for s in taken if s.outcome != "ok"] == []
    for sample in taken:
        assert sample.intended <= sample.sent < (sample.end or 0)
        assert sample.e2e == (sample.end or 0) - sample.intended
        if sample.model == "scripted":
            assert sample.output_tokens == sample.asked > 0 and sample.ttft is not None
        else:
            assert (sample.asked, sample.output_tokens, sample.first, sample.messages) == (0, 0, None, ())
            assert sample.ttft is None and list(sample.itl()) == []


def test_a_model_that_takes_arrays_gets_some_of_its_shape_and_type(url: str) -> None:
    requests = [Planned(f"a-{n}", "arrays", "batch", 0, item=n) for n in range(4)]
    assert [(s.outcome, s.error) for s in load(url, requests)] == [("ok", "")] * 4


def test_a_full_queue_refuses_before_it_runs_and_an_error_of_the_model_is_a_failure(url: str) -> None:
    crowd = load(url, texts("narrow", *[f"Number {n}." for n in range(40)]))
    refused = [sample for sample in crowd if sample.outcome == "rejected"]
    assert refused and all("Exceeds maximum queue size" in sample.error for sample in refused)
    assert {sample.outcome for sample in crowd} == {"ok", "rejected"}
    assert all(sample.e2e == float("inf") for sample in refused)
    mixed = load(url, texts("embed", "Hello.", "RAISE", "Good bye."))
    assert [(s.outcome, s.error) for s in mixed] == [("ok", ""), ("failed", "planted failure"), ("ok", "")]


def test_a_tier_waits_in_the_queue_of_its_priority(url: str) -> None:
    """Only the second queue is bounded, so only its requests can be refused."""
    crowd = [
        Planned(f"{tier}-{number}", "leveled", tier, 0, f"Number {number}.", priority=priority)
        for number in range(20)
        for priority, tier in enumerate(("interactive", "batch"), 1)
    ]
    ended = Counter((sample.tier, sample.outcome) for sample in load(url, crowd))
    assert ended["interactive", "ok"] == 20 and ended["batch", "rejected"] > 0
    assert ended["batch", "rejected"] + ended["batch", "ok"] == 20


def test_answers_that_do_not_come_in_time_are_failures(url: str) -> None:
    late = run.run(run.Job(url, texts("narrow", "Hello."), SECOND // 100, SECOND // 100))[0]
    assert [(s.outcome, s.error) for s in late] == [("failed", "no end of answer 0.01 s after the load ended")]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        (
            texts("absent", "Hello."),
            r"^model 'absent' is not ready on .*; ready there: arrays, broken, classify, embed, leveled, narrow",
        ),
        (
            texts("embed", "Hello.", tier="bulk"),
            r"^model 'embed' on .* does not serve tier 'bulk': tier 'bulk' is not ",
        ),
        (
            [Planned("a", "embed", "batch", 0, item=1)],
            r"^models\.embed\.traffic\.batch\.length: is missing; the served model takes texts$",
        ),
        (
            texts("classify", "Hello."),
            r"^models\.classify\.traffic\.interactive\.length: is given, and the served model takes no text; leave it ",
        ),
        (
            [*texts("embed", "Hello."), Planned("b", "scripted", "bulk", 0, "Hello.", max_tokens=1)],
            r"^model 'scripted' on .* does not serve tier 'bulk': .*; run gapless generate, and serve anew$",
        ),
    ],
)
def test_every_model_and_tier_is_checked_before_the_load(url: str, requests: list[Planned], told: str) -> None:
    with pytest.raises(run.LoadtestError, match=told):
        load(url, requests)


def test_a_burst_measures_what_is_sustained_of_all_models_together(url: str) -> None:
    mix = schedule(pick_parts(parse(SLA), None), 100 * SECOND, 1, 5)
    assert capacity.measure(url, mix, 2 * SECOND) > 20
    broken = [*mix[:20], *texts("broken", *["RAISE"] * 20)]
    with pytest.raises(run.LoadtestError, match=r"^capacity: broken: nothing came back in 3 s: planted failure$"):
        capacity.measure(url, broken, 3 * SECOND)


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "sla.yaml").write_text(SLA)
    words = [
        sys.executable,
        "-m",
        "gapless",
        "loadtest",
        "sla.yaml",
        "--duration",
        "3s",
        "--json",
        "o.json",
        *arguments,
    ]
    return subprocess.run(
        words, cwd=folder, env=os.environ | {"COLUMNS": "120"}, capture_output=True, text=True, timeout=120
    )


def test_the_command_loads_all_models_and_reports_each(tmp_path: Path, url: str) -> None:
    done = command(tmp_path, "--url", url)
    assert (done.returncode, done.stderr) == (1, "")  # of embed's batch nobody could keep the promise
    told = json.loads((tmp_path / "o.json").read_text())
    assert list(told["models"]) == ["scripted", "embed", "classify"]
    assert {name: model["held"] for name, model in told["models"].items()} == {
        "scripted": True,
        "embed": False,
        "classify": True,
    }
    assert told["held"] is False
    assert told["conclusion"] == "Not all promises were kept: of 4, 1 missed."
    classes = told["models"]["embed"]["classes"]
    assert set(classes) == {"interactive", "batch"}
    assert classes["batch"]["ok"] == classes["batch"]["sent"] > 10
    assert "ttft_s" not in classes["batch"] and classes["batch"]["e2e_s"]["p50"] > 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert [line for line in lines if line in told["models"]] == ["scripted", "embed", "classify"]
    assert done.stdout.count("TTFT ") == 1 and done.stdout.count("E2E ") == 4
    assert sum(line.startswith("Texts of embed: lengths approximated") for line in lines) == 1


def test_the_command_loads_one_model_alone_when_it_is_named(tmp_path: Path, url: str) -> None:
    done = command(tmp_path, "--url", url, "--model", "classify")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(json.loads((tmp_path / "o.json").read_text())["models"]) == ["classify"]
    assert done.stdout.startswith("interactive: sent ")
    assert "token" not in done.stdout
    assert "The promise was kept." in done.stdout


DEMO = """
from types import SimpleNamespace
import typer
from gapless.commands import demo

def told(what):
    return lambda name, *more, **how: print("built", what, name)

demo.build, demo.build_onnx, demo.BURST = told("llm"), told("onnx"), 3 * 10**9
demo.build_law, demo.generate_repository = told("law of"), told("from")
demo.facts = lambda *known: {}
demo.plan = lambda spec, known, **how: SimpleNamespace(held=spec.models["embed"].traffic["interactive"].rate < 100)
typer.run(demo.run)
"""


def test_the_demo_builds_serves_measures_and_loads_all_models(smollm2_dir: Path, tmp_path: Path) -> None:
    """With stand-ins in place of what it would build."""
    repository = scripted_repository(tmp_path / "model_repository", smollm2_dir, 0.02)
    add_stand_in(repository, "embed", seconds=0.02)
    add_stand_in(repository, "classify", PICTURE, seconds=0.02)
    (tmp_path / "sla.yaml").write_text(SLA)
    words = [sys.executable, "-c", DEMO, "sla.yaml", "--duration", "4s", "--json", "o.json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")  # of embed's batch nobody could keep the promise
    lines = done.stdout.splitlines()
    built = [line for line in lines if line.startswith("built")]
    assert built[:-1] == ["built llm scripted", "built law of scripted", "built onnx embed", "built onnx classify"]
    assert built[-1] == "built from namespace(held=True)"
    assert "planned for 4 times the declared rates" in " ".join(done.stdout.split())  # of 20/s, of which 160/s is over
    [sustained] = [float(line.split()[2]) for line in lines if line.startswith("It sustains")]
    told = json.loads((tmp_path / "o.json").read_text())
    assert told["rate_scale"] == pytest.approx(0.6 * sustained / 43, rel=1e-3)
    sent = {name: sum(tier["sent"] for tier in model["classes"].values()) for name, model in told["models"].items()}
    assert sum(sent.values()) == pytest.approx(0.6 * sustained * 4, rel=0.3)
    assert sent["embed"] == pytest.approx(sum(sent.values()) * 30 / 43, rel=0.2)
    assert all(tier["sent"] == tier["ok"] for model in told["models"].values() for tier in model["classes"].values())


def test_a_server_that_dies_fails_what_it_was_working_on(tmp_path: Path) -> None:
    """gRPC calls a broken connection UNAVAILABLE, as Triton calls a full queue: only the latter is a refusal."""
    repository = tmp_path / "repository"
    add_stand_in(repository, "slow", seconds=2)
    with serve(repository, tmp_path) as serving:
        url, servers = f"127.0.0.1:{serving.facts['grpc_port']}", [serving.facts["server_pid"]]

        def kill(seen: run.Progress) -> None:
            if seen.in_flight and servers:
                os.kill(servers.pop(), signal.SIGKILL)

        job = run.Job(url, texts("slow", "Hello."), SECOND, 10 * SECOND)
        [sample], _ = run.run(job, progress=kill)
    assert sample.outcome == "failed" and sample.error
