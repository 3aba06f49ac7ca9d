"""A promise broken on purpose, on a real Triton that a real Prometheus watches with the deployed configuration."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from plain_triton import stubs_of
from prometheus import Prometheus, prometheus
from repositories import add_stand_in, scripted_repository
from serving import Serving, serve, wait_for

from config_gen.sla.spec import parse
from gapless.commands.alerts import texts

SLA = parse("""
gapless: 1
tiers: {interactive: {}, batch: {max_queue: 2}}
models:
  scripted:
    kind: llm
    source: wheel:any
    targets: {interactive: {ttft: 1ms, at: p90}, batch: {e2e: 500s}}
    traffic:
      interactive: {rate: 20/s, prompt: {median: 5, p95: 9}, output: {median: 5, p95: 9}}
      batch: {rate: 1/s, prompt: {median: 5, p95: 9}, output: {median: 5, p95: 9}}
  embed:
    kind: onnx
    source: wheel:any
    targets: {interactive: {e2e: 1s}}
""")
PACE = 1 / 120  # a second for two minutes
TIERS = {"interactive": {"ttft_ms": 1}, "batch": {"e2e_ms": 500_000, "max_queue": 2}}
FILES = texts(SLA, "sla.yaml", PACE)


@pytest.fixture(scope="module")
def serving(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("alerts")
    repository = scripted_repository(folder / "repository", smollm2_dir, 0.02, tiers=json.dumps(TIERS))
    add_stand_in(repository, "embed")
    (repository / "serve.args").write_text("--metrics-config=summary_latencies=true\n")
    with serve(repository, folder, model="scripted") as serving:
        yield serving


@pytest.fixture(scope="module")
def watching(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "generated").mkdir()
    (folder / "generated" / "alerts.yml").write_text(FILES["alerts.yml"])
    with prometheus(folder, f"127.0.0.1:{serving.facts['metrics_port']}") as found:
        yield found


def first_in_state(watching: Prometheus, alert: str, state: str) -> float:
    """Seconds since the epoch of the evaluation that first found it so."""
    history = watching.query(f'ALERTS{{alertname="{alert}",model="scripted",alertstate="{state}"}}[5m]')
    return min(float(one["values"][0][0]) for one in history)


def test_a_broken_promise_is_pending_and_then_fires(serving: Serving, watching: Prometheus) -> None:
    broken = {("GaplessTtftOverTarget", "scripted"): 120, ("GaplessRefusals", "scripted"): 60}  # and seconds they hold
    wait_for(lambda: watching.query('up{job="triton"} == 1'))
    wait_for(lambda: ("GaplessServerDown", "") not in watching.alerts())  # before the first scrape it was unknown
    assert broken.keys().isdisjoint(watching.alerts())
    stream = serving.stream("first", "interactive", text_input="hello", sampling_parameters={"max_tokens": 2})
    numbers = count()

    def both_fire() -> bool:
        for tier in ["interactive"] * 2 + ["batch"] * 6:  # more of batch than it has slots and places for
            stream.send(f"{next(numbers)}", tier, text_input="hello", sampling_parameters={"max_tokens": 2})
        found = watching.alerts()
        return all(found.get(alert) == "firing" for alert in broken)

    wait_for(both_fire)
    stream.close(cancel=True)
    for (alert, _), hold in broken.items():
        pending, firing = (first_in_state(watching, alert, state) for state in ("pending", "firing"))
        assert firing - pending >= hold * PACE
    quiet = {("GaplessServerDown", ""), ("GaplessE2eOverTarget", "scripted"), ("GaplessE2eOverTarget", "embed")}
    quiet |= {(f"Gapless{name}", model) for name in ("ModelNotReady", "ModelRestarted") for model in SLA.models}
    assert quiet.isdisjoint(watching.alerts())
    edges = {
        (one["metric"]["tier"], float(one["metric"]["le"])) for one in watching.query("gapless_ttft_seconds_bucket")
    }
    assert ("interactive", 0.001) in edges and ("batch", 0.001) not in edges
    edges = {
        (one["metric"]["tier"], float(one["metric"]["le"])) for one in watching.query("gapless_e2e_seconds_bucket")
    }
    assert {("batch", 500.0), ("batch", 1000.0), ("interactive", 300.0)} <= edges and (
        "interactive",
        500.0,
    ) not in edges


def test_every_query_of_the_dashboard_is_one_and_every_metric_is_published(watching: Prometheus) -> None:
    panels = json.loads(FILES["dashboard.json"])["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert len(asked) > 20
    for expr in asked:
        watching.query(expr.replace("$__rate_interval", "5s"))
    names = set(re.findall(r"\b(?:gapless|nv)_\w+", " ".join(asked) + FILES["alerts.yml"]))
    known = {*watching.ask("label/__name__/values")["data"]}
    assert {name for name in names if not {name, f"{name}_count"} & known} == set()
    assert len(names) > 25


def test_a_failed_step_fires_at_once_and_the_server_s_log_says_why(serving: Serving, watching: Prometheus) -> None:
    assert ("GaplessStepFailed", "scripted") not in watching.alerts()
    stream = serving.stream(input_ids=[40001], stream=True)
    said = stream.error()
    stream.close()
    assert "planted failure" in said
    wait_for(lambda: watching.alerts().get(("GaplessStepFailed", "scripted")) == "firing")
    assert f"scripted: {said}".removesuffix("\n") in (serving.out.parent / "triton.log").read_text()


def test_a_model_whose_process_was_replaced_is_told(serving: Serving, watching: Prometheus) -> None:
    """As when the kernel kills it for memory; what Triton publishes of the model itself goes on as if nothing was."""
    assert ("GaplessModelRestarted", "scripted") not in watching.alerts()
    repository = serving.out.parent / "repository"
    [stub] = [pid for pid in stubs_of(repository) if str(repository / "scripted") in command(pid)]
    os.kill(stub, signal.SIGKILL)
    wait_for(lambda: watching.alerts().get(("GaplessModelRestarted", "scripted")) == "firing")
    wait_for(serving.answers)


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
