"""The real Prometheus and its promtool for tests, as scripts/get-prometheus.sh puts them beside this Python."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from serving import wait_for

DEPLOYED = Path(__file__).resolve().parent.parent / "deploy" / "observability"


def program(name: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    assert found, f"{name} is missing: make .venv/.prometheus"
    return found


def promtool(*words: str | Path) -> str:
    """What it says; fails the test when it finds something wrong."""
    done = subprocess.run([program("promtool"), *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Prometheus:
    address: str

    def ask(self, path: str, **asked: str) -> dict[str, Any]:
        """Prometheus' whole answer, also to what it refuses."""
        query = f"?{urllib.parse.urlencode(asked)}" if asked else ""
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}{query}", timeout=10) as response:
                answer: dict[str, Any] = json.loads(response.read())
        except urllib.error.HTTPError as error:
            answer = json.loads(error.read())
        return answer

    def query(self, expr: str) -> list[dict[str, Any]]:
        answer = self.ask("query", query=expr)
        assert answer["status"] == "success", f"{expr}: {answer['error']}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def alerts(self) -> dict[tuple[str, str], str]:
        """States by name and model."""
        found = self.ask("alerts")["data"]["alerts"]
        return {(one["labels"]["alertname"], one["labels"].get("model", "")): one["state"] for one in found}

    def up(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10) as response:
                return bool(response.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, server: str, interval: str = "200ms") -> Iterator[Prometheus]:
    """One with the deployed configuration, but for targets and intervals; rules lie in `folder`/generated."""
    config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(config["global"], interval)
    targets = {"triton": [server], "dcgm": []}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    config["alerting"]["alertmanagers"] = []
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    log = folder / "prometheus.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*command, f"--storage.tsdb.path={folder / 'tsdb'}"], stdout=sink, stderr=subprocess.STDOUT, cwd=folder
        )
    made = Prometheus(address)
    try:
        wait_for(lambda: made.up() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield made
    finally:
        process.kill()  # its data is thrown away
        process.wait()
