"""`gapless alerts` as a user types it, the dashboard that it writes, and what deploy/observability does with both."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from alert_cases import SLA
from prometheus import DEPLOYED, promtool

from config_gen.sla.spec import load
from gapless.commands.alerts import texts

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "sla").glob("*.yaml"))

# Grafana's classic dashboard model, as far as its documentation names fields and as far as they are used here.
PLACE = {
    "type": "object",
    "required": ["x", "y", "w", "h"],
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 23},
        "y": {"type": "integer", "minimum": 0},
        "w": {"type": "integer", "minimum": 1, "maximum": 24},
        "h": {"type": "integer", "minimum": 1},
    },
}
SOURCE = {
    "type": "object",
    "required": ["type", "uid"],
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
}
TARGET = {
    "type": "object",
    "required": ["refId", "expr", "legendFormat", "datasource"],
    "properties": {
        "refId": {"type": "string", "pattern": "^[A-Z]$"},
        "expr": {"type": "string", "minLength": 1},
        "legendFormat": {"type": "string", "minLength": 1},
        "datasource": SOURCE,
    },
}
STEPS = {
    "type": "array",
    "minItems": 1,
    "prefixItems": [{"type": "object", "properties": {"value": {"type": "null"}}}],
    "items": {"type": "object", "required": ["color", "value"], "properties": {"value": {"type": "number"}}},
}
GRAPH = {
    "required": ["targets", "datasource", "fieldConfig", "description"],
    "properties": {
        "targets": {"type": "array", "minItems": 1, "items": TARGET},
        "datasource": SOURCE,
        "fieldConfig": {
            "type": "object",
            "required": ["defaults", "overrides"],
            "properties": {
                "defaults": {
                    "type": "object",
                    "required": ["unit", "thresholds"],
                    "properties": {
                        "unit": {"enum": ["short", "s", "reqps", "ops", "percentunit"]},
                        "thresholds": {"properties": {"mode": {"const": "absolute"}, "steps": STEPS}},
                    },
                },
                "overrides": {"type": "array"},
            },
        },
    },
}
MODEL = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "version", "time", "templating", "panels", "annotations", "tags"],
    "properties": {
        "uid": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"},
        "title": {"type": "string", "minLength": 1},
        "schemaVersion": {"type": "integer"},
        "time": {"type": "object", "required": ["from", "to"]},
        "templating": {
            "type": "object",
            "required": ["list"],
            "properties": {
                "list": {"type": "array", "items": {"type": "object", "required": ["name", "type", "query"]}}
            },
        },
        "panels": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos"],
                "properties": {"id": {"type": "integer", "minimum": 1}, "gridPos": PLACE},
                "if": {"properties": {"type": {"const": "row"}}},
                "then": {"required": ["collapsed", "panels"], "properties": {"panels": {"const": []}}},
                "else": {"properties": {"type": {"const": "timeseries"}}, **GRAPH},
            },
        },
    },
}


def gapless(*words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gapless", "alerts", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)


def dashboard(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}


@pytest.fixture(params=[*FILES, None], ids=lambda path: path.name if path else "cards")
def files(request: pytest.FixtureRequest) -> dict[str, str]:
    """Of each file that is shipped, and of one with everything."""
    return texts(load(request.param) if request.param else SLA, "sla.yaml")


def test_the_dashboard_is_one_of_grafanas_model(files: dict[str, str]) -> None:
    made = dashboard(files["dashboard.json"])
    jsonschema.Draft202012Validator(MODEL).validate(made)
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = list(itertools.chain.from_iterable(cells(panel) for panel in panels))
    assert len(taken) == len(set(taken)) and max(x for x, _ in taken) <= 23
    assert [one["name"] for one in made["templating"]["list"]] == ["datasource"]
    for panel in panels:
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(letters)) == len(letters)


def test_prometheus_takes_every_rule_and_every_query(files: dict[str, str], tmp_path: Path) -> None:
    asked = [one["expr"] for panel in dashboard(files["dashboard.json"])["panels"] for one in panel.get("targets", [])]
    recorded = [{"record": f"q{at}", "expr": expr.replace("$__rate_interval", "1m")} for at, expr in enumerate(asked)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    (tmp_path / "alerts.yml").write_text(files["alerts.yml"])
    said = promtool("check", "rules", tmp_path / "queries.yml", tmp_path / "alerts.yml")
    assert f"SUCCESS: {len(asked)} rules found" in said
    assert said.count("SUCCESS") == 2


def test_each_promise_is_a_line_in_a_graph_of_its_percentile() -> None:
    panels = dashboard(texts(SLA, "sla.yaml")["dashboard.json"])["panels"]
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Machine", "chat", "embed"]
    lines = {
        panel["title"]: (
            panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"],
            panel["targets"][-1]["legendFormat"],
        )
        for panel in panels
        if panel["type"] != "row" and panel["fieldConfig"]["defaults"]["unit"] == "s"
        if len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) == 2
        and panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"] == {"mode": "line"}
    }
    assert lines == {
        "TTFT of interactive": (0.7, "P95"),
        "ITL of interactive": (0.06, "P95"),
        "E2E of batch": (400, "P90"),
        "E2E of all tiers": (0.2, "P95"),
    }


def test_the_command_writes_both_files_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    done = gapless("sla/demo.yaml", "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{out / name}: written" for name in ("alerts.yml", "dashboard.json")]
    assert {path.name: path.read_text() for path in out.iterdir()} == texts(load(ROOT / "sla/demo.yaml"), "demo.yaml")
    (out / "alerts.yml").write_text("groups: []\n")
    again = gapless("sla/demo.yaml", "--out", out)
    assert again.stdout.splitlines() == [f"{out / 'alerts.yml'}: changed", f"{out / 'dashboard.json'}: as it was"]


def test_what_cannot_be_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.yaml").write_text("gapless: 1\ntiers: {a: {}}\nmodels: {m: {kind: onnx}}\n")
    (tmp_path / "blocked" / "dashboard.json").mkdir(parents=True)
    for words, told in (
        (("no.yaml",), "gapless: no.yaml: No such file or directory; give an SLA file"),
        (("bad.yaml",), "gapless: bad.yaml: models.m.source: is missing"),
        ((ROOT / "sla/demo.yaml", "--out", "file"), "gapless: --out: file: is no folder; give a folder"),
        (
            (ROOT / "sla/demo.yaml", "--out", "blocked"),
            "gapless: --out: blocked: dashboard.json is there and not a file; the result is lost; give a folder",
        ),
    ):
        done = gapless(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(told) and len(done.stderr.splitlines()) == 1, done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bad.yaml", "blocked", "dashboard.json", "file"]


def test_the_file_that_is_read_is_kept_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_bytes((ROOT / "sla/demo.yaml").read_bytes())
    done = gapless("alerts.yml", "--out", ".", cwd=tmp_path)
    told = "gapless: --out: alerts.yml: is read, and would be overwritten; give another folder\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    assert (tmp_path / "alerts.yml").read_bytes() == (ROOT / "sla/demo.yaml").read_bytes()
    (tmp_path / "alerts.yml").rename(tmp_path / "sla.yaml")
    (tmp_path / "alerts.yml").symlink_to("rules")
    assert gapless("sla.yaml", "--out", ".", cwd=tmp_path).returncode == 0
    assert (tmp_path / "alerts.yml").is_symlink() and "groups:" in (tmp_path / "rules").read_text()


# deploy/observability


def test_the_deployed_configuration_is_one_for_prometheus() -> None:
    assert "SUCCESS" in promtool("check", "config", DEPLOYED / "prometheus.yml")
    config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    asked = set(re.findall(r'job="(\w+)"', texts(SLA, "sla.yaml")["alerts.yml"]))
    assert asked == {job["job_name"] for job in config["scrape_configs"]} == {"triton", "dcgm"}


def test_the_compose_file_mounts_what_is_there_and_names_its_versions() -> None:
    services = yaml.safe_load((DEPLOYED / "compose.yaml").read_text())["services"]
    assert set(services) == {"prometheus", "grafana", "alertmanager", "dcgm-exporter"}
    named = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    for job in (*named["scrape_configs"], *named["alerting"]["alertmanagers"]):
        for target in itertools.chain.from_iterable(static["targets"] for static in job["static_configs"]):
            assert target.split(":")[0] in {*services, "host.docker.internal"}
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+\.\d+[\w.-]*$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOYED / source).is_file() or source == "./generated", volume


def test_alertmanager_and_grafana_name_only_what_exists() -> None:
    told = yaml.safe_load((DEPLOYED / "alertmanager.yml").read_text())
    routes = [told["route"], *told["route"]["routes"]]
    assert {route["receiver"] for route in routes} == {receiver["name"] for receiver in told["receivers"]}
    [source] = yaml.safe_load((DEPLOYED / "grafana/datasources.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    [provider] = yaml.safe_load((DEPLOYED / "grafana/dashboards.yml").read_text())["providers"]
    volumes = yaml.safe_load((DEPLOYED / "compose.yaml").read_text())["services"]["grafana"]["volumes"]
    assert f"./generated:{provider['options']['path']}:ro" in volumes
