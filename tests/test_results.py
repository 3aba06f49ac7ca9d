"""Where results go is checked before the work, and what cannot be written is told in one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gapless.cli import main
from gapless.errors import UsageError
from gapless.results import check_outputs, write_json


@pytest.mark.parametrize(
    ("make", "name", "told"),
    [
        (os.mkfifo, "fifo", "is neither a file nor a device"),
        (os.mkdir, "folder", "is a folder"),
        (lambda path: None, "x" * 300, "File name too long"),
        (lambda path: None, "missing/file", "No such file or directory"),
        (lambda path: os.symlink(path, path), "loop", "Too many levels of symbolic links"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before(
    make: Callable[[Path], object], name: str, told: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    with pytest.raises(UsageError) as refused:
        check_outputs(json=None, log_file=tmp_path / name)
    assert str(refused.value).startswith("--log-file: ") and told in str(refused.value)


def test_what_is_read_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "sla.yaml").write_text("kept")
    (tmp_path / "link").symlink_to("sla.yaml")
    for name in ("sla.yaml", "link"):
        with pytest.raises(UsageError, match=f"^--json: .*{name}: is read, and would be overwritten; give a file"):
            check_outputs(tmp_path / "sla.yaml", json=tmp_path / name)
    check_outputs(None, tmp_path / "missing", Path("x" * 300), json=tmp_path / "link")
    assert (tmp_path / "sla.yaml").read_text() == "kept"


def test_the_check_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "later")
    (tmp_path / "there").write_text("kept")
    for name in ("link", "there", "new"):
        check_outputs(json=tmp_path / name)
    check_outputs(json=Path("/dev/null"), samples=Path("/dev/stdout"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there").read_text() == "kept"
    write_json(tmp_path / "link", {"a": 1})
    assert json.loads((tmp_path / "later").read_text()) == {"a": 1}


def test_a_full_disk_at_the_end_is_one_line() -> None:
    with pytest.raises(UsageError, match="--json: /dev/full: No space left on device; the result is lost"):
        write_json(Path("/dev/full"), {"a": 1})


def test_the_check_never_makes_the_file_for_which_somebody_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--ready-file` was there, empty, for a moment: who waited for it read nothing, before the server was ready."""
    made: list[str] = []
    opened = os.open

    def watched(path: object, *rest: int, **more: int | None) -> int:
        file = opened(path, *rest, **more)  # type: ignore[arg-type]
        made.extend(str(one) for one in tmp_path.iterdir())
        return file

    monkeypatch.setattr(os, "open", watched)
    check_outputs(ready_file=tmp_path / "ready.json")
    assert str(tmp_path / "ready.json") not in made and list(tmp_path.iterdir()) == []


def test_two_options_that_name_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kept")
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "later").symlink_to("new")
    for one, other in (("there", "there"), ("there", "link"), ("new", "new"), ("new", "later"), ("link", "link")):
        told = f"^--log-file: {tmp_path / other}: is also what --json names; give each a file of its own$"
        with pytest.raises(UsageError, match=told):
            check_outputs(json=tmp_path / one, samples=None, log_file=tmp_path / other)
    check_outputs(json=tmp_path / "there", log_file=tmp_path / "new", samples=tmp_path / "other")
    check_outputs(json=Path("/dev/null"), samples=Path("/dev/null"))
    assert (tmp_path / "there").read_text() == "kept" and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("compare", "a", "b", "--json", "a"), "--json: a: is read"),
        (("compare", "a", "b", "--json", "b"), "--json: b: is read"),
        (("loadtest", "sla.yaml", "--trace", "a", "--samples", "a"), "--samples: a: is read"),
        (("loadtest", "sla.yaml", "--trace", "a", "--json", "a"), "--json: a: is read"),
        (("loadtest", "sla.yaml", "--tokenizer", "b", "--json", "b"), "--json: b: is read"),
        (("loadtest", "sla.yaml", "--baseline", "b", "--json", "b"), "--json: b: is read"),
        (("loadtest", "sla.yaml", "--baseline", "new", "--json", "new"), "--baseline: new: is also what --json names"),
        (("loadtest", "sla.yaml", "--samples", "new", "--json", "new"), "--json: new: is also what --samples names"),
    ],
)
def test_commands_keep_what_they_read_and_write_all_that_they_were_asked_for(
    words: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("kept")
    monkeypatch.setattr(sys, "argv", ["gapless", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" and told in said.err and said.err.count("\n") == 1
    assert sorted((path.name, path.read_text()) for path in tmp_path.iterdir()) == [("a", "kept"), ("b", "kept")]
