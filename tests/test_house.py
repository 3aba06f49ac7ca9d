"""The house around the code: set-up scripts, Makefile, Dockerfile, extras. What is shipped is run or checked here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tracked() -> list[str]:
    """Files that are, or are about to be, in the repository."""
    listing = ("ls-files", "--cached", "--others", "--exclude-standard")
    found = subprocess.run(["git", "-c", "safe.directory=*", *listing], cwd=ROOT, check=True, capture_output=True)
    return [name for name in found.stdout.decode().splitlines() if (ROOT / name).is_file()]


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "TORCH_", "PYTHON"))}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, timeout=300)


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is in the repository, as `COPY . .` sees it."""
    target = tmp_path / "checkout"
    for name in tracked():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target


# The container


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_every_run_of_the_dockerfile_is_a_script_that_is_run_here() -> None:
    runs = [words.split()[0] for name, words in instructions() if name == "RUN"]
    assert runs
    for script in runs:
        assert os.access(ROOT / script, os.X_OK), script
        assert f'checkout / "{script}"' in Path(__file__).read_text(), f"{script} is not run by this file"


def test_the_dockerfile_starts_from_tritons_image_and_starts_the_launcher() -> None:
    found = instructions()
    assert found[0][0] == "ARG" and re.fullmatch(r"TRITON_TAG=\d\d\.\d\d-py3", found[0][1])
    assert found[1] == ("FROM", "nvcr.io/nvidia/tritonserver:${TRITON_TAG}")
    words = dict(found)
    entry = json.loads(words["ENTRYPOINT"])
    inside = Path(entry[0]).relative_to(words["WORKDIR"])
    assert os.access(ROOT / inside, os.X_OK)
    assert f'ROOT / "{inside}"' in Path(__file__).read_text()


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        ([], "gapless serve --host 0.0.0.0"),
        (["--drain-timeout", "5"], "gapless serve --host 0.0.0.0 --drain-timeout 5"),
        (["tritonserver", "--model-repository=models"], "tritonserver --model-repository=models"),
        (["gapless", "--help"], "gapless --help"),
    ],
)
def test_the_entrypoint_starts_the_launcher_or_the_program_named(
    tmp_path: Path, arguments: list[str], started: str
) -> None:
    for name in ("gapless", "tritonserver"):
        program(tmp_path / name, f'echo {name} "$@"')
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run(ROOT / "scripts/container-entrypoint.sh", *arguments, PATH=path)
    assert done.stdout.strip() == started, done.stderr


def test_container_setup_installs_the_package_and_leaves_the_torch_that_is_there(checkout: Path) -> None:
    environment = checkout.parent / "container"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    # What this environment has stands for what the container brings: pip, torch and the rest of the serve extra.
    (site / "container.pth").write_text(sysconfig.get_path("purelib") + "\n")
    setup = checkout / "scripts/container-setup.sh"
    done = run(setup, "--no-build-isolation", "--no-index", "--quiet", cwd=checkout.parent, PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    assert not list(site.glob("torch*"))
    shipped = [name for name in tracked() if name.split("/")[0] in PROJECT["tool"]["setuptools"]["packages"]]
    missing = [name for name in shipped if not (site / name).is_file()]
    assert not missing, "a file of a package is not installed with it; see [tool.setuptools] in pyproject.toml"
    check = "import decode.sampler, torch; print(decode.sampler.__file__, torch.__version__)"
    answer = run(python, "-c", check, cwd=checkout.parent).stdout.split()
    assert answer == [str(site / "decode/sampler.py"), importlib.metadata.version("torch")]
    assert "serve" in run(environment / "bin" / "gapless", "--help", cwd=checkout.parent).stdout


@pytest.mark.parametrize("index", ["", "some-index"])
def test_container_setup_installs_the_pinned_torch_where_there_is_none(checkout: Path, index: str) -> None:
    log = checkout.parent / "log"
    bare = f'if [ "$1" = -m ]; then echo "${{@:2}}" >>{log}; else exec {sys.executable} -I -S "$@"; fi'
    python = program(checkout.parent / "python", bare)
    done = run(checkout / "scripts/container-setup.sh", PYTHON=str(python), TORCH_INDEX=index)
    assert done.returncode == 0, done.stderr
    first, second, third = log.read_text().splitlines()
    assert first == " ".join(["pip install", *([f"--index-url {index}"] if index else []), "torch==2.13.0"])
    wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["serve"]
    assert second == "pip install " + " ".join(wanted)
    assert third == "pip install --no-deps ."


# The Makefile and its scripts


def test_make_venv_makes_one_and_then_leaves_it_alone(tmp_path: Path) -> None:
    target = tmp_path / "env"
    assert run(ROOT / "scripts/make-venv.sh", target, PYTHON=sys.executable).returncode == 0
    assert run(target / "bin" / "python", "-m", "pip", "--version").returncode == 0
    before = (target / "pyvenv.cfg").stat().st_mtime_ns
    assert run(ROOT / "scripts/make-venv.sh", target, PYTHON="no-such-python").returncode == 0
    assert (target / "pyvenv.cfg").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("exit 1", "Python 3.11 or 3.12 is needed"),
        ('case "$2" in *version_info*) exit 0;; *) exit 1;; esac', "apt-get install python3-venv"),
    ],
)
def test_make_venv_says_in_one_line_what_is_missing(tmp_path: Path, python: str, message: str) -> None:
    for name in ("python3.12", "python3.11", "python3"):
        program(tmp_path / name, python)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run(ROOT / "scripts/make-venv.sh", tmp_path / "env", PATH=path)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_prometheus_on_path_is_linked_and_without_any_one_line_says_what_to_do(tmp_path: Path) -> None:
    tools, target = tmp_path / "tools", tmp_path / "target"
    for name in ("bash", "mkdir", "ln"):  # no apt-get
        program(tools / name, f'exec {shutil.which(name)} "$@"')
    script = ROOT / "scripts/get-prometheus.sh"
    without = run("/bin/bash", script, target, PATH=str(tools))
    assert without.returncode == 2 and len(without.stderr.splitlines()) == 1
    assert "prometheus and promtool are not on PATH" in without.stderr
    for name in ("prometheus", "promtool"):
        program(tmp_path / "there" / name, f"echo {name}")
    assert run("/bin/bash", script, target, PATH=f"{tmp_path / 'there'}:{tools}").returncode == 0
    assert run(target / "promtool").stdout == "promtool\n"
    assert run("/bin/bash", script, target, PATH=f"{target}:{tools}").returncode == 0  # an activated environment
    assert run(target / "prometheus").stdout == "prometheus\n"


def test_chromium_on_path_is_linked_and_without_it_one_line_says_what_to_do(tmp_path: Path) -> None:
    tools, target = tmp_path / "tools", tmp_path / "target"
    for name in ("bash", "mkdir", "ln", "id"):  # no apt-get
        program(tools / name, f'exec {shutil.which(name)} "$@"')
    script = ROOT / "scripts/get-chromium.sh"
    without = run("/bin/bash", script, target, PATH=str(tools))
    assert without.returncode == 2 and len(without.stderr.splitlines()) == 1
    assert "chromium is not on PATH" in without.stderr
    program(tmp_path / "there" / "chromium", "echo chromium")
    assert run("/bin/bash", script, target, PATH=f"{tmp_path / 'there'}:{tools}").returncode == 0
    assert run(target / "chromium").stdout == "chromium\n"
    assert run("/bin/bash", script, target, PATH=f"{target}:{tools}").returncode == 0  # an activated environment
    assert run(target / "chromium").stdout == "chromium\n"


def planned(checkout: Path, target: str, *more: str) -> list[str]:
    """Command lines `make` would run for a target."""
    done = run("make", "--no-print-directory", "-n", target, *more, cwd=checkout)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


TARGETS = {
    "demo": [".venv/bin/gapless demo sla/demo.yaml"],
    "serve": [
        ".venv/bin/gapless build --sla sla/demo.yaml --profile",
        ".venv/bin/gapless generate sla/demo.yaml",
        ".venv/bin/gapless serve",
    ],
    "test": [".venv/bin/python -m pytest"],
}


@pytest.mark.parametrize("target", TARGETS)
def test_each_make_target_sets_itself_up_once(checkout: Path, target: str) -> None:
    first = planned(checkout, target)
    assert any("make-venv.sh" in line for line in first)
    assert any(re.search(r"pip .*install .*'torch==2\.13\.0' 'numpy<2' --editable", line) for line in first)
    assert first[-len(TARGETS[target]) :] == TARGETS[target]
    (checkout / ".venv").mkdir()
    for stamp in (".made", ".run", ".dev", ".prometheus", ".chromium"):
        (checkout / ".venv" / stamp).touch()
    assert planned(checkout, target) == TARGETS[target]
    newer = (checkout / ".venv" / ".dev").stat().st_mtime + 10
    os.utime(checkout / "pyproject.toml", (newer, newer))
    assert any("--editable" in line for line in planned(checkout, target))


def test_make_check_covers_format_lint_and_the_types_of_every_package(checkout: Path) -> None:
    lines = planned(checkout, "check")[-3:]
    assert lines[:2] == [".venv/bin/ruff format --check .", ".venv/bin/ruff check ."]
    command, *files = lines[2].split()
    assert command == ".venv/bin/mypy" and files[0] == "--strict"
    packages = {path.parent.name for path in checkout.glob("*/__init__.py")} - {"tests"}
    assert packages == set(files[1:])


def test_make_takes_torch_from_where_it_is_told(checkout: Path) -> None:
    lines = planned(checkout, "demo", "TORCH_SPEC=torch==9.9", "TORCH_INDEX=some-index")
    installs = [line for line in lines if "pip" in line and "install" in line and "torch" in line]
    assert "--index-url 'some-index' 'torch==9.9'" in installs[0]
    assert all("'torch==9.9'" in line for line in installs) and "some-index" not in "".join(installs[1:])


def test_continuous_integration_runs_checks_and_tests() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines and lines[-2:] == ["make check", "make test"]


@pytest.mark.parametrize("script", [name for name in tracked() if name.startswith(("scripts/", ".ci/"))])
def test_scripts_parse_and_stop_at_the_first_error(script: str) -> None:
    text = (ROOT / script).read_text()
    if text.splitlines()[0].endswith("bash"):
        assert run("bash", "-n", script).returncode == 0
        assert "set -euo pipefail" in text


# The package


def test_extras_are_those_a_user_picks_and_each_one_resolves_here() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {"serve", "embedded", "loadtest", "build", "observe", "dev"}
    for line in [*PROJECT["project"]["dependencies"], *(line for lines in extras.values() for line in lines)]:
        wanted = Requirement(line)
        have = importlib.metadata.version(wanted.name)
        assert wanted.specifier.contains(have, prereleases=True), f"{line}: {have} is installed"
        provided = importlib.metadata.metadata(wanted.name).get_all("Provides-Extra") or []
        assert wanted.extras <= set(provided), line


def test_every_package_folder_is_in_the_distribution() -> None:
    folders = {str(Path(name).parent).replace("/", ".") for name in tracked() if name.endswith("/__init__.py")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders


def test_the_licence_is_the_one_declared() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0" in text and "END OF TERMS AND CONDITIONS" in text


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    private = re.compile(r"(?<![\w.])/(root|work|home|Users)/[\w.]+")
    found = []
    for name in tracked():
        text = (ROOT / name).read_bytes().decode(errors="ignore")
        found += [f"{name}: {match[0]}" for match in private.finditer(text)]
    assert found == []
