"""Commands that are ended from outside: no half of what they write stays, and no trace is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
