"""`gapless generate` as a user types it: what it writes, what it refuses, what it prints. The planner is a stand-in."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path

import pytest
from plans import chat, embed, plan, stats
from typer import Typer
from typer.testing import CliRunner, Result

from config_gen.plan import Knob, Plan, Prediction
from config_gen.triton.model_config import parse
from config_gen.triton.repository import RepositoryError
from config_gen.triton.triton_config import config
from gapless import serve_flags
from gapless.commands import generate
from gapless.errors import UsageError
from gapless.generation import generate_repository
from gapless.parts import REPOSITORY

MS = 10**6
KEPT = Prediction("embed", "interactive", "e2e", Fraction(99, 100), 100 * MS, 20.0 * MS, 25.0 * MS, "computing")
MISSED = Prediction("chat", "interactive", "ttft", Fraction(19, 20), 500 * MS, 450.0 * MS, 900.0 * MS, "computing")
REFUSED = Prediction("chat", "batch", "e2e", Fraction(99, 100), 500 * MS, inf, inf, "refused")
HELD = replace(plan(chat(parameters={"device": "cpu"}), embed()), predictions=(KEPT,))
UNHELD = replace(HELD, predictions=(KEPT, MISSED, REFUSED), advice=("A second card would do.",))
FILES = ["chat/config.pbtxt", "embed/config.pbtxt", "serve.args"]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plan that the stand-in gives, to be replaced; the working directory is a folder of its own."""
    plans = [HELD]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(generate, "planned", lambda sla, repository: plans[-1])
    return plans


def run(*words: str) -> Result:
    app = Typer()
    app.command()(generate.run)
    return CliRunner().invoke(app, ["sla.yaml", *words])


def written() -> list[str]:
    return sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.rglob("*") if path.is_file())


def test_it_writes_says_so_and_then_has_nothing_to_do(asked: list[Plan]) -> None:
    first = run()
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout.splitlines() == [f"model_repository/{name}: written" for name in FILES]
    assert written() == FILES
    assert parse((REPOSITORY / "chat/config.pbtxt").read_text()) == config(HELD.models[0])
    head = (REPOSITORY / "serve.args").read_text().splitlines()[0]
    assert head.startswith("# Written by gapless ") and head.endswith(
        " from sla.yaml; again by: gapless generate sla.yaml"
    )
    before = stats(REPOSITORY)
    assert run().stdout.splitlines() == [f"model_repository/{name}: as it was" for name in FILES]
    assert stats(REPOSITORY) == before
    asked.append(replace(HELD, models=(HELD.models[0], embed(response_cache=True))))
    assert run().stdout.splitlines() == [
        "model_repository/chat/config.pbtxt: as it was",
        "model_repository/embed/config.pbtxt: changed",
        "model_repository/serve.args: changed",
    ]


def test_the_command_in_the_files_writes_them_again(asked: list[Plan], tmp_path: Path) -> None:
    assert run("--out", "other place").exit_code == 0
    head = (tmp_path / "other place/serve.args").read_text().replace("\n# ", " ")
    assert "again by: gapless generate sla.yaml --out 'other place'" in head


def test_models_that_are_not_in_the_file_are_named_and_left_alone(asked: list[Plan]) -> None:
    (REPOSITORY / "theirs").mkdir(parents=True)
    (REPOSITORY / "theirs/config.pbtxt").write_text("mine")
    assert run().stdout.splitlines()[-1] == "Not in the file, and left alone: theirs"
    assert (REPOSITORY / "theirs/config.pbtxt").read_text() == "mine"


def test_a_changed_file_is_refused_until_forced(asked: list[Plan]) -> None:
    run()
    config_file = REPOSITORY / "embed/config.pbtxt"
    mine = config_file.read_text().replace("KIND_CPU", "KIND_AUTO")
    config_file.write_text(mine)
    asked.append(plan(chat(), embed()))
    refused = run()
    assert isinstance(refused.exception, RepositoryError) and refused.stdout == ""
    assert str(refused.exception).startswith("model_repository/embed/config.pbtxt: changed by hand")
    assert config_file.read_text() == mine
    assert run("--force").exit_code == 0
    assert parse(config_file.read_text()) == config(embed())


@pytest.mark.parametrize("forced", [False, True])
def test_a_plan_that_misses_targets_is_written_only_when_forced(asked: list[Plan], forced: bool) -> None:
    asked.append(UNHELD)
    done = run("--json", "o.json", *(["--force"] if forced else []))
    misses = [
        "models.chat.targets.interactive.ttft: 500 ms at P95 is missed: 450 ms, 900 ms with headroom; computing",
        "models.chat.targets.batch.e2e: 500 ms at P99 is missed: ∞, ∞ with headroom; refused",
        "A second card would do.",
    ]
    rest = [] if forced else ["Nothing was written; --force writes what comes nearest."]
    assert done.stderr.splitlines() == misses + rest
    assert done.exit_code == (0 if forced else 1)
    assert written() == (FILES if forced else [])
    told = json.loads(Path("o.json").read_text())
    assert (told["held"], told["written"]) == (False, [f"model_repository/{name}" for name in FILES] if forced else [])
    assert [found["with_headroom_ns"] for found in told["predictions"]] == [25e6, 900e6, None]


def test_diff_writes_nothing_and_its_status_says_whether_anything_would_change(asked: list[Plan]) -> None:
    new = run("--diff")
    assert new.exit_code == 1 and not REPOSITORY.exists()
    assert new.stdout.count("--- /dev/null") == 3
    run()
    assert (run("--diff").exit_code, run("--diff").stdout) == (0, "")
    (REPOSITORY / "chat/config.pbtxt").write_text("[mine] :smile:")
    changed = run("--diff")
    assert changed.exit_code == 1 and "\n-[mine] :smile:\n\\ No newline" in changed.stdout
    assert (REPOSITORY / "chat/config.pbtxt").read_text() == "[mine] :smile:"
    subprocess.run(["patch", "-p0", "--quiet"], input=changed.stdout.encode(), check=True)
    assert run("--diff").exit_code == 0


def test_diff_of_a_plan_that_misses_targets_tells_them_beside_it(asked: list[Plan]) -> None:
    asked.append(UNHELD)
    done = run("--diff")
    assert done.exit_code == 1 and done.stdout.startswith("--- /dev/null") and "500 ms at P95 is missed" in done.stderr
    assert not REPOSITORY.exists()
    run("--force")
    assert run("--diff").exit_code == 0  # whatever it misses, nothing would change


def test_the_result_has_every_knob_with_its_reason(asked: list[Plan]) -> None:
    knob = Knob("max_batch_size", "8", "the knee")
    asked.append(plan(embed(knobs=(knob,), memory=7)))
    run("--json", "o.json")
    told = json.loads(Path("o.json").read_text())
    found = told["models"]["embed"]
    assert (found["gpus"], found["memory"]) == ([], 7)
    assert found["knobs"] == [{"name": "max_batch_size", "value": "8", "reason": "the knee"}]
    assert told["held"] is True and told["flags"][0]["name"] == "--model-control-mode"


def test_a_result_that_cannot_be_written_is_told_before_anything_is(asked: list[Plan]) -> None:
    assert isinstance(run("--json", "no/such/folder/o.json").exception, UsageError)
    assert not REPOSITORY.exists()


# What `gapless serve` takes of the file of flags


def test_the_launcher_gives_the_flags_that_it_does_not_decide(tmp_path: Path) -> None:
    assert serve_flags.read(tmp_path) == []
    flag = Knob("--rate-limit-resource", "card:1", "")
    generate_repository(plan(chat(), embed(rate_limit={"card": 1}), flags=(flag,)), tmp_path, Path("sla.yaml"))
    assert serve_flags.read(tmp_path) == [
        "--rate-limit=execution_count",
        "--metrics-config=summary_latencies=true",
        "--rate-limit-resource=card:1",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"--good=1\nnot a flag\n", ":2: 'not a flag' is not allowed; one flag a line, as --name=value"),
        (b"--http-port=9000\n", ": --http-port is not allowed here; give it as gapless serve --http-port"),
        (b"--grpc-address=0.0.0.0\n", ": --grpc-address is not allowed here; give it as gapless serve --host"),
        (b"--exit-timeout-secs=3\n", ": --exit-timeout-secs is not allowed here; give it as gapless serve --drain-t"),
        (b"\xff\xfe", ": is not UTF-8 text; one flag a line, as --name=value"),
        (b"-" * 500, f":1: '{'-' * 100}' is not allowed"),
    ],
)
def test_a_line_that_cannot_be_is_told_with_its_place(tmp_path: Path, text: bytes, told: str) -> None:
    (tmp_path / "serve.args").write_bytes(text)
    with pytest.raises(UsageError) as refused:
        serve_flags.read(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/serve.args{told}") and "\n" not in str(refused.value)


def test_a_folder_in_the_place_of_the_flags(tmp_path: Path) -> None:
    (tmp_path / "serve.args").mkdir()
    with pytest.raises(UsageError, match=r"serve.args: Is a directory$"):
        serve_flags.read(tmp_path)
