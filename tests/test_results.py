"""Where results go is checked before the work, and what cannot be written is told in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

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
