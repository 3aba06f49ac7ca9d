"""`gapless alerts`: an SLA file into rules for Prometheus and a dashboard for Grafana, with the file's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from config_gen.sla.spec import Spec, load
from gapless.errors import UsageError
from gapless.results import check_folder, write_folder
from observe.alerts import alerts, rule_file
from observe.dashboard import dashboard

OUT = Path("deploy/observability/generated")  # where its compose.yaml looks for them
RULES, DASHBOARD = "alerts.yml", "dashboard.json"


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    out: Annotated[Path, typer.Option(help="Folder for alerts.yml and dashboard.json.", metavar="DIR")] = OUT,
) -> None:
    """Write alerts.yml and dashboard.json. Exit 2 on bad input."""
    for name in (RULES, DASHBOARD):
        if (path := out / name).exists() and sla.exists() and path.samefile(sla):
            raise UsageError(f"--out: {path}: is read, and would be overwritten; give another folder")
    check_folder("out", out)
    for path, what in _write(out, texts(load(sla), sla.name)).items():
        print(f"{path}: {what}")


def texts(spec: Spec, name: str, pace: float = 1.0) -> dict[str, str]:
    """The files by name. `pace` multiplies every duration of the alerts."""
    head = (
        f"# Written by: gapless alerts {json.dumps(name)[1:-1]}\n"
        "# A change made here is lost when it is run again: own rules belong into a file beside this one.\n"
    )
    rules = yaml.safe_dump(rule_file(alerts(spec, pace)), sort_keys=False, allow_unicode=True, width=110)
    shown = json.dumps(dashboard(spec, f"gapless, {name}"), indent=2)
    return {RULES: head + rules, DASHBOARD: shown + "\n"}


def _write(folder: Path, wanted: dict[str, str]) -> dict[Path, str]:
    """All of them or none; what became of each. Raises UsageError."""
    found = {path: _change(path, text.encode()) for name, text in wanted.items() for path in [folder / name]}
    write_folder(folder, {name: text.encode() for name, text in wanted.items()}, "out")
    return found


def _change(path: Path, data: bytes) -> str:
    """What writing `data` will have done to it."""
    try:
        return "as it was" if path.read_bytes() == data else "changed"
    except OSError:  # told by who writes, where it matters
        return "changed" if path.exists() else "written"
