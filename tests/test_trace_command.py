"""`gapless observe --trace` as a user meets it: what it says, and one line for mistakes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from logged import CONFIG, MS, busy
from trace_check import check

from decode.step_file import StepFile, read
from gapless.cli import main
from observe.ring import Ring

Observe = Callable[..., tuple[int, str, str]]


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Observe:
    """Runs the command in a folder with a step log; exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    run, file = busy(0).run(), StepFile(Path("steps"), CONFIG)
    for entry in run.entries:
        file.take(entry)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gapless", "observe", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_the_command_says_in_a_sentence_what_the_trace_shows(observe: Observe, tmp_path: Path) -> None:
    with Ring(Path("out/observed"), 2**20) as ring:  # where gapless observe puts samples unless it is told otherwise
        began = next(read(Path("steps"))[1]).began
        ring.append(began + MS, {'host_cpu_percent{core="0"}': 12.0})
    status, out, err = observe("--trace", "trace.json", "--steps", "steps")
    assert (status, err) == (0, "")
    steps, gaps, where = out.splitlines()
    assert re.fullmatch(r"\d+ steps of \d+ requests in \d\.\d+ s: \d+\.\d% executing", steps)
    assert re.fullmatch(r"gaps: no request .*, requests wait .*, host .* \(longest .*; plan \d+%, .*\)", gaps)
    assert where == "trace.json: open it at https://ui.perfetto.dev"
    assert check(Path("trace.json")).counters["CPU"] == [(MS, {"percent": 12.0})]


@pytest.mark.parametrize("there", [None, '{"gapless_ring":9}\n'])
def test_samples_that_nobody_asked_for_and_that_cannot_be_read_are_left_out(
    observe: Observe, there: str | None
) -> None:
    Path("out/observed").mkdir(parents=True)
    if there is not None:
        Path("out/observed/samples-00000001.jsonl").write_text(there)
    status, out, err = observe("--trace", "trace.json", "--steps", "steps")
    assert (status, err, len(out.splitlines())) == (0, "", 3) and "CPU" not in check(Path("trace.json")).counters
    status, out, err = observe("--trace", "trace.json", "--steps", "steps", "--out", "out/observed")
    assert (status, out) == (2, "") and err.startswith("gapless: out/observed")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trace", "trace.json"), "--trace FILE, to be written, needs --steps FILE"),
        (("--steps", "steps"), "--trace FILE, to be written, needs --steps FILE"),
        (("--last", "5s"), "--trace FILE, to be written, needs --steps FILE"),
        (("--trace", "trace.json", "--steps", "none"), "none: No such file or directory; give a file that gapless"),
        (("--trace", "trace.json", "--steps", "."), ".: Is a directory; give a file that gapless serve"),
        (("--trace", "trace.json", "--steps", "empty"), "empty: holds no step yet; send a request"),
        (("--trace", "trace.json", "--steps", "header"), "header: holds no step yet; send a request"),
        (("--trace", "trace.json", "--steps", "text"), "text: is no step log of this version; give a file"),
        (("--trace", "trace.json", "--steps", "torn"), "torn: line 3 is no line of a step log"),
        (
            ("--trace", "trace.json", "--steps", "steps", "--out", "none"),
            "none: No such file or directory; give a folder",
        ),
        (("--trace", "trace.json", "--steps", "steps", "--last", "5"), "'5' has no unit; write 5ms"),
        (("--trace", "trace.json", "--steps", "steps", "--memory", "."), "--memory: not together with --trace"),
        (
            ("--trace", "no/trace.json", "--steps", "steps"),
            "--trace: no/trace.json: No such file or directory; give a file",
        ),
        (("--trace", ".", "--steps", "steps"), "--trace: .: is a folder; give a file that can be written"),
        (("--trace", "steps", "--steps", "steps"), "--trace: steps: is read, and would be overwritten"),
        (("--trace", "steps.1", "--steps", "steps"), "--trace: steps.1: is read, and would be overwritten"),
        (("--trace", "/dev/full", "--steps", "steps"), "--trace: /dev/full: No space left on device"),
    ],
)
def test_mistakes_are_told_in_one_line_and_nothing_is_written(
    observe: Observe, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    lines = Path("steps").read_bytes().splitlines(keepends=True)
    for name, parts in {
        "empty": [],
        "header": lines[:1],
        "text": [b"what is this\n"],
        "torn": [*lines[:2], b"{}\n", *lines[2:]],
        "steps.1": lines[:9],
    }.items():
        Path(name).write_bytes(b"".join(parts))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    status, out, err = observe(*words)
    assert (status, out) == (2, "")
    assert told in " ".join(err.replace("│", " ").split())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
