"""`gapless alerts`: an SLA file into rules for Prometheus and a dashboard for Grafana, with the file's numbers."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
import yaml

from config_gen.sla.spec import Spec, load
from gapless.errors import UsageError
from observe.alerts import alerts, rule_file
from observe.dashboard import dashboard

OUT = Path("deploy/observability/generated")  # where its compose.yaml looks for them
RULES, DASHBOARD = "alerts.yml", "dashboard.json"


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    out: Annotated[Path, typer.Option(help="Folder for alerts.yml and dashboard.json.", metavar="DIR")] = OUT,
) -> None:
    """Write alerts.yml and dashboard.json. Exit 2 on bad input."""
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
    found, fresh = {}, {folder / name: folder / f".{name}.{os.getpid()}" for name in wanted}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, new in fresh.items():
            if path.exists() and not path.is_file():
                raise OSError(None, "is there and not a file")
            new.write_text(wanted[path.name], encoding="utf-8")
            same = path.is_file() and path.read_bytes() == new.read_bytes()
            found[path] = "as it was" if same else "changed" if path.exists() else "written"
        for path, new in fresh.items():
            new.replace(path)
    except OSError as error:
        for new in fresh.values():
            with suppress(OSError):
                new.unlink()
        raise UsageError(f"--out: {folder}: {error.strerror}; give a folder that can be written") from None
    return found
