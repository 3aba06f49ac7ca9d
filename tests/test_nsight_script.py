"""The script that takes an Nsight Systems profile, with programs that stand for nsys and gapless."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from serving import ROOT, wait_for

SCRIPT = ROOT / "scripts/nsight-profile.sh"
NSYS = """
while [ "$1" = start ] && ! grep -q "^${AWAITED:-}" "$LOG"; do sleep 0.02; done
echo "nsys $*" >>"$LOG"
[ "$1" = launch ] || exit 0
while [ $# -gt 0 ] && [ "$1" != bash ]; do shift; done
exec "$@"
"""
GAPLESS = """
trap 'echo "gapless ended" >>"$LOG"; exit 0' TERM
echo "gapless $*" >>"$LOG"
[ "$LATE" != never ] || exit 3
for ((n = 0; n < LATE; n++)); do sleep 0.02; done
echo "gapless is ready" >>"$LOG"
echo '{"pid": 1}' >"$3"
while :; do sleep 0.02; done
"""
LOAD = 'echo "load begins" >>"$LOG"; sleep 60; echo "load has ended by itself" >>"$LOG"'


@pytest.fixture
def programs(tmp_path: Path) -> Mapping[str, str]:
    """An environment in which both are on PATH."""
    for name, text in (("nsys", NSYS), ("gapless", GAPLESS)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{text}")
        path.chmod(0o755)
    path_ = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path_, "LOG": str(tmp_path / "log"), "LATE": "5", "TMPDIR": str(tmp_path)}


def start(folder: Path, environment: Mapping[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(SCRIPT), *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Status and what it said; nothing of it is left."""
    try:
        said = process.communicate(timeout=60)[1]
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


def lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_it_collects_while_the_load_lasts_and_ends_what_it_started(tmp_path: Path, programs: Mapping[str, str]) -> None:
    words = ("-d", "0.2", "-w", "0.1", "-o", "out/one", "-l", LOAD, "--", "--model", "chat", "--option", "a=b c")
    status, said = ended(start(tmp_path, {**programs, "AWAITED": "load begins"}, *words))
    assert status == 0, said
    launch, serve, *rest = lines(tmp_path)
    session = launch.split("--session-new=")[1].split()[0]
    folder = serve.split("--ready-file ")[1].split("/ready.json")[0]
    options = f"--session-new={session} --trace=cuda,nvtx,osrt --cuda-graph-trace=node"
    inner = f"""bash -c echo $$ >"$0" && exec "$@" {folder}/pid gapless serve --ready-file {folder}/ready.json"""
    assert launch == f"nsys launch {options} {inner} --model chat --option a=b c"
    assert serve == f"gapless serve --ready-file {folder}/ready.json --model chat --option a=b c"
    start_ = f"nsys start --session={session} --sample=none --cpuctxsw=none --output=out/one --force-overwrite=true"
    assert rest == ["gapless is ready", "load begins", start_, f"nsys stop --session={session}", "gapless ended"]
    assert [line.split(";")[0] for line in said.splitlines()] == [
        "gapless: the server is ready",
        "gapless: collecting for 0.2 s",
        "gapless: out/one.nsys-rep: open it with nsys-ui, or: nsys stats out/one.nsys-rep",
    ]
    assert (tmp_path / "out").is_dir() and not Path(folder).exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_and_keeps_what_was_collected(
    tmp_path: Path, programs: Mapping[str, str], number: signal.Signals, status: int
) -> None:
    process = start(tmp_path, programs, "-d", "600", "-w", "0", "-l", LOAD)
    wait_for(lambda: any(line.startswith("nsys start") for line in lines(tmp_path)))
    process.send_signal(number)
    assert ended(process)[0] == status
    *_, stop, last = [line for line in lines(tmp_path) if line != "load begins"]
    assert stop.startswith("nsys stop --session=") and last == "gapless ended"
    assert "load has ended by itself" not in lines(tmp_path)


def test_a_signal_before_the_server_is_ready_collects_nothing(tmp_path: Path, programs: Mapping[str, str]) -> None:
    process = start(tmp_path, {**programs, "LATE": "3000"})
    wait_for(lambda: any(line.startswith("gapless serve") for line in lines(tmp_path)))
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "")
    assert [line.split()[:2] for line in lines(tmp_path)][2:] == [["gapless", "ended"]]


def test_a_server_that_ends_before_it_is_ready_is_told(tmp_path: Path, programs: Mapping[str, str]) -> None:
    status, said = ended(start(tmp_path, {**programs, "LATE": "never"}))
    assert (status, said) == (1, "gapless: the server ended before it was ready\n")


@pytest.mark.parametrize(
    ("words", "more", "told"),
    [
        ((), {"NSYS": "no-such-nsys"}, "no-such-nsys is not on PATH; install Nsight Systems"),
        ((), {"GAPLESS": "no-such"}, "no-such is not on PATH; activate its environment"),
        (("-d", "ten"), {}, "'ten' is not allowed; seconds, as 10 or 2.5"),
        (("-w", "-1"), {}, "'-1' is not allowed"),
        (("-d",), {}, "-d: unknown, or without its value; -d SECONDS, -w SECONDS"),
        (("-x",), {}, "-x: unknown, or without its value"),
    ],
)
def test_mistakes_are_told_in_one_line(
    tmp_path: Path, programs: Mapping[str, str], words: tuple[str, ...], more: dict[str, str], told: str
) -> None:
    status, said = ended(start(tmp_path, {**programs, **more}, *words))
    assert status == 2 and said.startswith(f"gapless: {told}") and len(said.splitlines()) == 1
    assert lines(tmp_path) == [] and [path.name for path in tmp_path.iterdir()] == ["bin"]
