"""The report of a load on the real Triton: what its metrics page said shares the time of what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from repositories import add_stand_in, scripted_repository
from serving import Serving, serve

from config_gen.sla.spec import load
from gapless import loads
from gapless.load_report import LoadReport
from gapless.parts import pick_parts
from loadtest.recording import Recording
from loadtest.replay import Choice
from observe import timelines
from observe.timelines import Timeline

SECOND = 10**9
LATE = 0.75  # s that a number may be old: told four times a second, sampled four times a second, on busy cores
SLA = """
gapless: 1
tiers: {interactive: {}, batch: {}}
models:
  scripted:
    kind: llm
    source: wheel:any
    targets: {interactive: {e2e: 60s, at: p50}}
    traffic: {interactive: {rate: 1/s, prompt: {median: 5, p95: 9}, output: {median: 5, p95: 9}}}
  embed:
    kind: onnx
    source: wheel:any
    traffic: {interactive: {rate: 1/s, length: {median: 5, p95: 9}}}
"""
# Two bursts, each of as many requests as fit one step, of 100 steps of 20 ms; texts meanwhile, of 50 ms.
BURSTS = (0.0, 3.8)
TRACE = [
    "timestamp,model,tier,prompt_tokens,output_tokens",
    *(f"{at + 0.01 * n:.2f},scripted,{('interactive', 'batch')[n % 2]},6,100" for at in BURSTS for n in range(4)),
    *(f"{at + 0.1 * n:.2f},embed,interactive,6," for at in BURSTS for n in range(10)),
]


@dataclass(frozen=True)
class Run:
    page: LoadReport
    taken: Recording
    html: str

    def timelines(self, model: str) -> dict[str, Timeline]:
        return {one.name: one for one in timelines.of_model(self.page.seen, model)}

    def in_flight(self, model: str, moments: np.ndarray) -> np.ndarray:
        """Requests under way at each moment, in s since the load began."""
        spans = [(one.sent / 1e9, (one.end or 0) / 1e9) for one in self.taken.samples if one.model == model]
        return np.array([sum(begin <= at <= end for begin, end in spans) for at in moments])


@pytest.fixture(scope="module")
def serving(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("report-server")
    repository = scripted_repository(folder / "repository", smollm2_dir, 0.02)
    add_stand_in(repository, "embed", seconds=0.05)
    with serve(repository, folder, model="scripted") as serving:
        yield serving


@pytest.fixture(scope="module")
def run(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("report")
    (folder / "sla.yaml").write_text(SLA)
    (folder / "trace.csv").write_text("\n".join(TRACE) + "\n")
    spec, url = load(folder / "sla.yaml"), f"127.0.0.1:{serving.facts['grpc_port']}"
    metrics = f"http://127.0.0.1:{serving.facts['metrics_port']}/metrics"
    page = LoadReport(folder / "report", metrics, url, folder / "sla.yaml", spec)
    chosen = loads.replayed(Choice(folder / "trace.csv", pick_parts(spec, None), False, None, 1.0, None), 0)
    with page.recording(chosen.duration):
        taken = loads.send(chosen, url)
    page.finish(loads.reported(chosen, taken), taken)
    return Run(page, taken, (folder / "report" / "report.html").read_text())


def disagreements(run: Run, began: int) -> int:
    """Samples at which the engine ran something though nothing was in flight, or the other way round.

    Left out are those near a begin or an end, by LATE.
    """
    of = run.timelines("scripted")["running"]
    moments = (of.times - began) / 1e9
    near = np.stack([run.in_flight("scripted", moments - ago) > 0 for ago in np.linspace(0, LATE, 76)])
    sure = near.all(axis=0) | ~near.any(axis=0)
    known = sure & (moments > LATE)
    assert (near.all(axis=0) & known).sum() >= 4 and (~near.any(axis=0) & known).sum() >= 2
    return int(((of.lines["running"] > 0) != near.all(axis=0))[known].sum())


def test_the_engine_runs_exactly_while_requests_are_in_flight(run: Run) -> None:
    assert {one.outcome for one in run.taken.samples} == {"ok"} and len(run.taken.samples) == 28
    assert disagreements(run, run.taken.client.began) == 0
    assert disagreements(run, run.taken.client.began + SECOND) > 0  # another time base would be noticed


def test_what_the_engine_did_meanwhile_is_what_was_asked(run: Run) -> None:
    of = run.timelines("scripted")
    assert np.nanmax(of["running"].lines["running"]) == 4 and set(of["running"].limits["slots"]) == {8.0}
    assert np.nanmax(of["pages"].lines["used"]) >= 4 * 100 / 16
    assert np.nanmin(of["step-time"].lines["step"]) >= 20
    rate, span = of["steps"].lines["steps"], np.diff(of["steps"].times, prepend=of["steps"].times[0]) / 1e9
    assert 200 <= round(np.nansum(rate * span)) <= 220  # 100 a burst, or some more: not all begin with the same one
    assert set(of["waiting"].lines) == {"interactive", "batch"}
    texts = run.timelines("embed")
    assert np.nanmin(texts["queue"].lines["in the model"]) >= 50
    assert 1 <= np.nanmin(texts["batch"].lines["items"]) <= np.nanmax(texts["batch"].lines["items"]) <= 8


def test_all_of_it_is_in_the_page(run: Run) -> None:
    expected = {f"scripted-{it}" for it in ("waiting", "running", "pages", "step-time", "steps")}
    expected |= {f"embed-{it}" for it in ("pending", "queue", "batch")}
    expected |= {f"machine-{it}" for it in ("cpu", "processes", "memory")}
    assert all(f'<figure id="plot-{name}">' in run.html for name in expected)
    assert "model scripted" in run.html and "tritonserver" in run.html and "max_num_batched_tokens" in run.html
