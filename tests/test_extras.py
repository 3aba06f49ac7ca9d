"""A package that is not installed is told in one line; which one a command needs, against what its files import."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gapless import extras
from gapless.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def without(package: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a Python that cannot import `package`."""
    argv = ["gapless", *words]
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv = {argv!r}; from gapless.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("module", "words", "line"),
    [
        ("pynvml", ["observe"], "observe: the package nvidia-ml-py is missing; pip install 'gapless[observe]'"),
        ("numpy", ["compare", "a", "b"], "compare: the package numpy is missing; pip install 'gapless[loadtest]'"),
        ("numpy", ["loadtest", "x"], "loadtest: the package numpy is missing; pip install 'gapless[loadtest,observe]'"),
        ("locust", ["loadtest", "sla/demo.yaml"], "loadtest: the package locust is missing; pip install 'gapless[load"),
        ("grpc", ["loadtest", "sla/demo.yaml"], "loadtest: the package tritonclient is missing; pip install 'gapless["),
        ("yaml", ["alerts", "x"], "alerts: the package pyyaml is missing; pip install 'gapless'"),
    ],
)
def test_a_missing_package_is_one_line_with_what_to_install(module: str, words: list[str], line: str) -> None:
    done = without(module, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gapless: {line}") and done.stderr.count("\n") == 1


def test_what_is_needed_late_is_told_too(tmp_path: Path) -> None:
    done = without("scipy", "observe", "--memory", str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2,
        "gapless: observe: the package scipy is missing; pip install 'gapless[observe]'\n",
    )


def test_a_module_of_our_own_that_is_missing_is_a_defect_with_its_trace() -> None:
    done = without("loadtest.verdict", "compare", "a", "b")
    assert done.returncode == 1 and "Traceback" in done.stderr


def imported(module: str, seen: set[str]) -> Iterator[str]:
    """Every package that importing a module of ours imports, by the name in the import."""
    file = ROOT / (module.replace(".", "/") + ".py")
    if module in seen or not file.is_file():
        return
    seen.add(module)
    for node in ast.parse(file.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            top = name.partition(".")[0]
            if top in ROOMS:
                yield from imported(name, seen)
            elif top not in sys.stdlib_module_names:
                yield top


def declared(*wanted: str) -> set[str]:
    """Packages that these extras install, with those of gapless itself."""
    lines = [*PROJECT["dependencies"], *(line for one in wanted for line in PROJECT["optional-dependencies"][one])]
    found = {Requirement(line) for line in lines}
    inner = [extra for one in found if one.name == "gapless" for extra in one.extras]
    return {one.name.lower() for one in found} | (declared(*inner) if inner else set())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_extras_of_a_command_hold_all_that_it_imports(command: str) -> None:
    wanted = extras.EXTRAS.get(command, "").split(",") if command in extras.EXTRAS else []
    modules = [f"gapless.commands.{command}", *(["loadtest.worker"] if command == "loadtest" else [])]
    names = {name for module in modules for name in imported(module, set())}
    assert names
    packages = {extras.INSTALLED_AS.get(name, name.replace("_", "-")).lower() for name in names}
    assert packages <= declared(*wanted)
