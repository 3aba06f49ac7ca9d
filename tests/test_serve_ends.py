"""Ways in which `gapless serve` ends or never starts; each case has a server of its own, or none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from plans import chat
from repositories import CHAT_MODEL, SMALL, configure, scripted_repository
from serving import region, serve, wait_for

PROMPT = "the quick brown fox jumps over the lazy dog"
LONG = {"sampling_parameters": {"max_tokens": 1900}}


def family(pid: int) -> set[int]:
    """A process and all below it."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_launcher_leaves_no_process(smollm2_dir: Path, tmp_path: Path) -> None:
    with serve(scripted_repository(tmp_path / "repository", smollm2_dir, 0.005), tmp_path) as serving:
        stream = serving.stream(text_input=PROMPT, stream=True, **LONG)
        stream.next()
        everyone = family(serving.process.pid)
        assert len(everyone) >= 3
        serving.process.kill()
        serving.process.wait()
        wait_for(lambda: not any(alive(pid) for pid in everyone), 10)


def test_when_the_drain_timeout_is_over_what_still_runs_ends_with_an_error(smollm2_dir: Path, tmp_path: Path) -> None:
    repository = scripted_repository(tmp_path / "repository", smollm2_dir, 0.05)
    with serve(repository, tmp_path, "--drain-timeout", "1") as serving:
        stream = serving.stream(text_input=PROMPT, stream=True, **LONG)
        stream.next()
        shared = region(serving.stub)
        assert shared.exists()
        serving.process.send_signal(signal.SIGTERM)
        assert "shut down before the answer was complete" in stream.error()
        assert serving.process.wait(15) == 0
    assert not shared.exists()


def test_a_second_signal_ends_it_at_once(smollm2_dir: Path, tmp_path: Path) -> None:
    with serve(scripted_repository(tmp_path / "repository", smollm2_dir, 0.05), tmp_path) as serving:
        stream = serving.stream(text_input=PROMPT, stream=True, **LONG)
        stream.next()
        everyone = family(serving.process.pid)
        serving.process.send_signal(signal.SIGINT)
        wait_for(lambda: any("draining" in line for line in serving.lines))
        serving.process.send_signal(signal.SIGINT)
        assert serving.process.wait(10) == 1
        assert not any(alive(pid) for pid in everyone)


def failing(folder: Path, *arguments: str) -> tuple[int, str]:
    """Status and the last line of a `gapless serve` in `folder` that cannot start."""
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    command = [sys.executable, "-m", "gapless", "serve", *ports, "--log-file", os.devnull, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A folder with a configured model repository of which nothing is built."""
    configure(tmp_path / "model_repository", chat(parameters=SMALL))
    return tmp_path


def test_a_port_in_use_is_named(configured: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, line = failing(configured, "--http-port", str(port))
    assert status == 2 and f"--http-port: {port} is in use on 127.0.0.1" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model-repository", "nowhere"], "nowhere is not a folder; run gapless build, then generate"),
        (["--model-repository", "."], ". holds no model (no */config.pbtxt); run gapless generate"),
        (["--model", "absent"], "absent is not in model_repository; it holds chat"),
        ([], "chat is configured and holds nothing to load; run gapless build"),
        (["--option", "max_num_seqs"], "key=value"),
        (["--option", "max_num_seqs=none"], "max_num_seqs: 'none' is not allowed"),
        (["--option", "max_seqs=1"], "max_seqs: unknown; one of"),
        (["--http-port", "70000"], "--http-port: 70000 is not allowed"),
        (["--drain-timeout", "-1"], "--drain-timeout: -1 is not allowed"),
    ],
)
def test_bad_words_on_the_command_line(configured: Path, arguments: list[str], words: str) -> None:
    status, line = failing(configured, *arguments)
    assert status == 2 and words in line


def test_a_model_without_weights_says_what_to_run(tmp_path: Path) -> None:
    version = tmp_path / "chat" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(CHAT_MODEL.read_text())
    configure(tmp_path, chat(parameters=SMALL))
    status, line = failing(tmp_path, "--model-repository", ".")
    assert status == 1 and line.endswith("holds no weights; run gapless build chat")


def test_a_flag_that_tritonserver_does_not_know(smollm2_dir: Path, tmp_path: Path) -> None:
    repository = scripted_repository(tmp_path, smollm2_dir, 0.0)
    status, line = failing(tmp_path, "--model-repository", str(repository), "--", "--no-such-flag")
    assert status == 1 and "--no-such-flag" in line
