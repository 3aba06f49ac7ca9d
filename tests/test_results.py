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
from gapless.results import check_apart, check_outputs, check_outside, opened, write_folder, write_json


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


def test_what_was_there_stays_when_the_new_result_fails(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("kept")
    there.chmod(0o640)
    link.symlink_to("there")
    for path in (there, link, tmp_path / "new"):
        with pytest.raises(KeyError), opened(path, "json") as file:
            file.write("half")
            raise KeyError
    assert there.read_text() == "kept" and sorted(one.name for one in tmp_path.iterdir()) == ["link", "there"]
    write_json(link, 1)
    assert link.is_symlink() and there.read_text() == "1\n" and there.stat().st_mode & 0o777 == 0o640


def test_a_folder_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("kept")
    (tmp_path / "c").mkdir()
    with pytest.raises(UsageError, match="c is there and not a file; the result is lost"):
        write_folder(tmp_path, {"a": b"new", "b": b"new", "c": b"new"}, "report")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "c"] and (tmp_path / "a").read_text() == "kept"
    (tmp_path / "a").rename(tmp_path / "d")
    (tmp_path / "a").symlink_to("d")
    write_folder(tmp_path, {"a": b"new", "b": b"new"}, "report")
    assert (tmp_path / "a").is_symlink() and (tmp_path / "d").read_text() == (tmp_path / "b").read_text() == "new"


def test_what_lies_in_a_folder_that_is_read_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "ring").mkdir()
    (tmp_path / "link").symlink_to("ring")
    for path in ("ring/samples-00000001.jsonl", "link/deep/../new"):
        with pytest.raises(UsageError, match=r"^--json: .* lies in .*ring, which is read; give a file elsewhere$"):
            check_outside(tmp_path / "ring", json=tmp_path / path)
    check_outside(tmp_path / "ring", json=tmp_path / "ring.json", sarif=None)


def test_a_report_and_the_files_beside_it_do_not_take_each_others_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("out")
    for path in ("out/report.html", "out/chat.png", "link/report.html", "out", "link"):
        with pytest.raises(UsageError, match=r"^--json: .*(is what --report writes there|would be the folder of --re)"):
            check_apart("report", tmp_path / "out", ("report.html", "*.png"), json=tmp_path / path)
    check_apart("report", tmp_path / "out", ("*.png",), json=tmp_path / "out/a.json", samples=None)
    (tmp_path / "out/report.html").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"^--report: .*report\.html: is there and not a file"):
        check_apart("report", tmp_path / "out", ("report.html", "*.png"))
