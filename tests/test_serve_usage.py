"""What `gapless serve` refuses before it starts anything, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from gapless.commands.serve import run
from gapless.errors import UsageError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--drain-timeout", "nan"], "--drain-timeout: nan is not allowed; 0 to 86400 seconds"),
        (["--drain-timeout", "inf"], "--drain-timeout: inf is not allowed"),
        (["--drain-timeout", "1e300"], "--drain-timeout: 1e+300 is not allowed"),
        (["--host", "256.1.1.1"], "--host: '256.1.1.1' is not allowed"),
        (["--host", "192.0.2.1"], "--host: '192.0.2.1' is not allowed"),
        (["--host", "a" * 70 + ".invalid"], "--host: 'aaa"),
        (["--host", ""], "--host: '' is not allowed"),
        (["--host", "::1"], "--host: '::1' is not allowed; IPv6 is not supported"),
        (["--log-file", "."], "--log-file: .: is a folder"),
        (["--log-file", "x" * 300], "--log-file: xxx"),
        (["--log-file", "missing/log"], "--log-file: missing/log: No such file"),
        (["--ready-file", "missing/ready"], "--ready-file: missing/ready: No such file"),
        (["--ready-file", "/dev/null"], "--ready-file: /dev/null: is not a file"),
        (["--ready-file", "r" * 253], "--ready-file: rrr"),
        (["--model-repository", "x" * 300], "--model-repository: xxx"),
        (["--model-repository", "missing"], "--model-repository: missing is not a folder"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model_repository" / "chat").mkdir(parents=True)
    (tmp_path / "model_repository" / "chat" / "config.pbtxt").touch()
    monkeypatch.chdir(tmp_path)
    app = Typer()
    app.command()(run)
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    ended = CliRunner().invoke(app, [*ports, *words])
    assert isinstance(ended.exception, UsageError)
    assert str(ended.exception).startswith(told) and "\n" not in str(ended.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["model_repository"]
