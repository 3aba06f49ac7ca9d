"""`gapless lint` as a user meets it: exit status, text, JSON, SARIF, and one line for what cannot be read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lint_pairs import MODEL, config
from lint_pairs_models import PAIRS
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from config_gen.lint.findings import rules
from config_gen.lint.repository import LARGEST
from gapless.cli import main

BY_RULE = {pair.rule: pair for pair in PAIRS}
Lint = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lint:
    """Runs the command; exit status, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gapless", "lint", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def bad(rule: str, folder: Path) -> Path:
    return BY_RULE[rule].write(folder, BY_RULE[rule].bad)


def test_an_error_is_told_with_its_place_its_reason_and_what_to_do(lint: Lint, tmp_path: Path) -> None:
    repository = bad("reshape", tmp_path / "models")
    status, out, err = lint(repository)
    rule = rules()["reshape"]
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        f"error reshape {repository}/reshape/config.pbtxt:3",
        "  4 elements become 3",
        f"  why: {rule.why}",
        f"  fix: {rule.fix}",
        "",
        f"1 model, {len(rules())} rules: 1 error, 0 warnings, 0 notes",
    ]


def test_warnings_and_notes_alone_are_no_failure(lint: Lint, tmp_path: Path) -> None:
    bad("duplicate-key", tmp_path)
    status, out, _ = lint(bad("batch-in-dims", tmp_path))
    assert status == 0 and "0 errors, 1 warning, 1 note" in out


def test_json_holds_what_is_printed(lint: Lint, tmp_path: Path) -> None:
    repository = bad("reshape", tmp_path / "models")
    assert lint(repository, "--json", tmp_path / "found.json")[0] == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["counts"] == {"error": 1, "warning": 0, "note": 0}
    [finding] = found["findings"]
    assert finding["rule"] == "reshape" and finding["severity"] == "error"
    assert (finding["file"], finding["line"], finding["what"]) == ("reshape/config.pbtxt", 3, "4 elements become 3")


def test_sarif_is_what_the_standard_says(lint: Lint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The types are made from its JSON schema and refuse what it does not know."""
    bad("reshape", tmp_path / "all models")
    bad("duplicate-key", tmp_path / "all models")
    monkeypatch.chdir(tmp_path)
    assert lint("all models", "--sarif", "found.sarif")[0] == 1
    text = Path("found.sarif").read_text()
    [run] = Sarif.model_validate_json(text).runs
    assert run.results is not None and run.tool.driver.rules is not None
    assert [rule.id for rule in run.tool.driver.rules] == list(rules())
    second, first = run.results
    assert first.ruleId == "reshape" and str(first.level) == "Level.error" and first.ruleIndex is not None
    assert run.tool.driver.rules[first.ruleIndex].id == "reshape" and second.ruleId == "duplicate-key"
    place = json.loads(text)["runs"][0]["results"][1]["locations"][0]["physicalLocation"]
    address = "all%20models/reshape/config.pbtxt"
    assert place == {"artifactLocation": {"uri": address}, "region": {"startLine": 3}}
    with pytest.raises(ValueError, match="resluts"):
        Sarif.model_validate_json(text.replace('"results"', '"resluts"'))


def test_sarif_of_an_absolute_folder_has_absolute_addresses(lint: Lint, tmp_path: Path) -> None:
    assert lint(bad("reshape", tmp_path / "models"), "--sarif", tmp_path / "found.sarif")[0] == 1
    assert f'"file://{tmp_path}/models/reshape/config.pbtxt"' in (tmp_path / "found.sarif").read_text()


def test_all_rules_are_listed(lint: Lint) -> None:
    status, out, _ = lint("--rules")
    assert status == 0
    for rule in rules().values():
        assert f"{rule.severity} {rule.id}\n  {rule.why}\n  fix: {rule.fix}\n" in out


def test_flags_come_from_serve_args_or_from_where_they_are_said_to_be(lint: Lint, tmp_path: Path) -> None:
    repository = BY_RULE["reshape"].write(tmp_path / "models", BY_RULE["reshape"].good)
    assert lint(repository)[0] == 0
    (repository / "serve.args").write_text("# as the container starts it\n--log-verbose 1  # much\n\n--max-queue=5\n")
    status, out, _ = lint(repository)
    assert status == 1 and f"error unknown-flag {repository}/serve.args:4\n  max-queue\n" in out
    other = tmp_path / "flags"
    other.write_text("--exit-on-error false\n")
    status, out, _ = lint(repository, "--args", other)
    assert status == 0 and f"warning failure-hidden {other}:1\n" in out


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda folder: folder / "missing", "No such file or directory; give a folder of models"),
        (lambda folder: folder, "holds no model (no */config.pbtxt)"),
        (lambda folder: bad("reshape", folder) / "reshape", "it is a model itself; give the folder above it"),
        (lambda folder: bad("reshape", folder) / "reshape" / "config.pbtxt", "Not a directory"),
        (lambda folder: folder / ("x" * 300), "File name too long"),
    ],
)
def test_what_is_no_repository_is_bad_input(
    make: Callable[[Path], Path], told: str, lint: Lint, tmp_path: Path
) -> None:
    status, out, err = lint(make(tmp_path))
    assert (status, out) == (2, "") and told in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("option", ["--json", "--sarif", "--args"])
def test_an_option_that_cannot_be_is_bad_input(option: str, lint: Lint, tmp_path: Path) -> None:
    repository = bad("reshape", tmp_path / "models")
    status, out, err = lint(repository, option, tmp_path)
    assert (status, out) == (2, "") and "is a folder" in err and len(err.splitlines()) == 1


def put(folder: Path, content: bytes) -> None:
    (folder / "config.pbtxt").write_bytes(content)


def looped(folder: Path) -> None:
    (folder / "config.pbtxt").symlink_to("config.pbtxt")


def huge(folder: Path) -> None:
    with (folder / "config.pbtxt").open("wb") as file:
        file.truncate(10 * 2**30)


CONFIG = config().encode()
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "huge": (huge, f"config-unreadable: cannot be read: has {10 * 2**30} bytes; at most {LARGEST} are read"),
    "loop": (looped, "config-unreadable: cannot be read: Too many levels of symbolic links"),
    "dangling": (
        lambda folder: (folder / "config.pbtxt").symlink_to("x"),
        "config-unreadable: cannot be read: No such",
    ),
    "fifo": (lambda folder: os.mkfifo(folder / "config.pbtxt"), "config-unreadable: cannot be read: is no file"),
    "folder": (lambda folder: (folder / "config.pbtxt").mkdir(), "config-unreadable: cannot be read: is a folder"),
    "binary": (lambda folder: put(folder, bytes(range(256)) * 16), "parse: column 1: "),
    "nulls": (lambda folder: put(folder, bytes(4096)), "parse: column 1: "),
    "empty": (lambda folder: put(folder, b""), "no-tensors: no input and no output is declared"),
    "mark": (lambda folder: put(folder, b"\xef\xbb\xbf" + CONFIG), "(the file begins with a byte order mark)"),
    "deep": (lambda folder: put(folder, b"input [" * 100_000), "parse: column "),
    "nested": (lambda folder: put(folder, b"optimization {" * 50_000), "unknown-field: column "),
    "number": (lambda folder: put(folder, b"max_batch_size: 99999999999999999999"), "parse: column "),
    "deep python": (
        lambda folder: (put(folder, CONFIG), (folder / "1" / "model.py").write_text("(" * 100_000)),
        "python-syntax: too many nested parentheses",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_in_a_repository_ends_in_a_trace(case: str, lint: Lint, tmp_path: Path) -> None:
    make, told = HOSTILE[case]
    version = tmp_path / "model" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    make(tmp_path / "model")
    status, _, err = lint(tmp_path, "--json", tmp_path / "found.json")
    assert status in (0, 1) and err == ""
    found = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert told in " ".join(f"{finding['rule']}: {finding['what']}" for finding in found)


def test_names_that_would_move_the_cursor_are_spelt_out(lint: Lint, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m\n"))
    folder.mkdir()
    (folder / "config.pbtxt").write_text('nope: "\x1b[31m"')
    status, out, _ = lint(tmp_path, "--sarif", tmp_path / "found.sarif", "--json", tmp_path / "found.json")
    assert status == 1 and "\x1b" not in out
    assert "/\\udcff\\x1b[31m\\n/config.pbtxt:1" in out
    Sarif.model_validate_json((tmp_path / "found.sarif").read_text())
