"""The files of a plan on disk: all or none of them, a user's changes stay, and what is the same is left alone."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import anything, chat, embed, models, plan, stats

from config_gen.plan import Knob, Plan
from config_gen.triton.model_config import parse
from config_gen.triton.repository import Origin, RepositoryError, files, is_as_written
from config_gen.triton.repository_files import changes, write
from config_gen.triton.serve_args import FlagError, flags, read
from config_gen.triton.triton_config import config

ORIGIN = Origin("sla.yaml", "gapless generate sla.yaml", "1.2.3")
BOTH = plan(chat(parameters={"weights": "fp32"}), embed())
OTHER = plan(chat(parameters={"weights": "int8"}), embed(response_cache=True))


def generate(repository: Path, wanted: Plan = BOTH, force: bool = False) -> None:
    write(changes(repository, files(wanted, ORIGIN)), force=force)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_repository_has_a_configuration_for_each_model_and_the_flags(tmp_path: Path) -> None:
    generate(tmp_path / "models")
    found = tree(tmp_path / "models")
    assert sorted(found) == ["chat/config.pbtxt", "embed/config.pbtxt", "serve.args"]
    for name, content in found.items():
        first, second, third = content.decode().splitlines()[:3]
        assert first == "# Written by gapless 1.2.3 from sla.yaml; again by: gapless generate sla.yaml", name
        assert second.startswith("# A change made here stays") and third.startswith("# gapless sha256: ")
        assert is_as_written(content.decode())
    assert parse(found["chat/config.pbtxt"].decode()) == config(BOTH.models[0])


def test_what_is_the_same_is_not_touched(tmp_path: Path) -> None:
    generate(tmp_path)
    before = stats(tmp_path)
    generate(tmp_path)
    assert changes(tmp_path, files(BOTH, ORIGIN)) == []
    assert stats(tmp_path) == before


def test_only_what_another_plan_changes_is_written(tmp_path: Path) -> None:
    generate(tmp_path, plan(chat(), embed()))
    left = stats(tmp_path / "chat")
    wanted = plan(chat(), embed(response_cache=True))
    assert [c.path.relative_to(tmp_path) for c in changes(tmp_path, files(wanted, ORIGIN))] == [
        Path("embed/config.pbtxt"),
        Path("serve.args"),
    ]
    generate(tmp_path, wanted)
    assert stats(tmp_path / "chat") == left
    assert parse((tmp_path / "embed/config.pbtxt").read_text()).response_cache.enable


def test_models_that_the_plan_does_not_name_stay(tmp_path: Path) -> None:
    generate(tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/config.pbtxt").write_text("anything")
    generate(tmp_path, plan(embed()))
    assert (tmp_path / "theirs/config.pbtxt").read_text() == "anything"
    assert (tmp_path / "chat/config.pbtxt").exists()


EDITS: list[Callable[[str], str]] = [
    lambda text: text.replace("fp32", "fp16"),
    lambda text: text.replace("1.2.3", "1.2.4"),  # of the header
    lambda text: text.replace("sha256: ", "sha256: 0"),
    lambda text: text.rstrip("\n"),
    lambda text: text + "\n",
    lambda text: text.replace("\n", "\r\n"),
    lambda text: "".join(line for line in text.splitlines(keepends=True) if "sha256" not in line),
    lambda text: text.replace("# gapless sha256", "# gapless sha257"),
    lambda text: "",
    lambda text: 'name: "chat"\n',  # never ours
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("wanted", [BOTH, OTHER])
def test_a_file_that_a_user_changed_stays_unless_forced(
    tmp_path: Path, edit: Callable[[str], str], wanted: Plan
) -> None:
    generate(tmp_path)
    for name in ("chat/config.pbtxt", "serve.args"):
        path = tmp_path / name
        path.write_bytes((edit(path.read_text()) + ("#" if name == "serve.args" else "")).encode())
    before = tree(tmp_path)
    with pytest.raises(RepositoryError) as refused:
        generate(tmp_path, wanted)
    told = str(refused.value)
    assert told.startswith(f"{tmp_path}/chat/config.pbtxt, {tmp_path}/serve.args: changed by hand, or not written by")
    assert "--force" in told and "\n" not in told and refused.value.exit_status == 2
    assert tree(tmp_path) == before
    generate(tmp_path, wanted, force=True)
    assert changes(tmp_path, files(wanted, ORIGIN)) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(models, max_size=3, unique_by=lambda model: model.name), st.integers(0), anything)
def test_one_changed_character_is_enough_to_be_a_users(made: list[object], at: int, put: str) -> None:
    for text in files(Plan(tuple(made), (), 0), ORIGIN).values():  # type: ignore[arg-type]
        assert is_as_written(text)
        where = at % len(text)
        changed = text[:where] + put + text[where + 1 :]
        assert is_as_written(changed) is (changed == text)


def test_a_file_that_is_not_text_is_a_users(tmp_path: Path) -> None:
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat/config.pbtxt").write_bytes(b"\xff\xfe\x00")
    [*_, found] = [c for c in changes(tmp_path, files(BOTH, ORIGIN)) if c.path.parent.name == "chat"]
    assert not found.is_ours and found.diff().startswith(f"--- {tmp_path}/chat/config.pbtxt")


@pytest.mark.parametrize("obstacle", ["model", "config", "repository"])
def test_something_in_the_way_is_told_in_one_line_and_nothing_is_written(tmp_path: Path, obstacle: str) -> None:
    repository = tmp_path / "models"
    if obstacle == "config":
        (repository / "embed/config.pbtxt").mkdir(parents=True)
    else:
        path = repository / "embed" if obstacle == "model" else repository
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    before = tree(tmp_path)
    with pytest.raises(RepositoryError, match=r"(Is|Not) a directory; nothing was written$"):
        generate(repository, force=True)
    assert tree(tmp_path) == before


def test_a_model_cannot_be_called_as_the_file_of_flags(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"^models.serve.args: is not allowed"):
        generate(tmp_path, plan(embed("serve.args")))


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_crash_on_the_way_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool, step: str, nth: int, failure: BaseException
) -> None:
    repository = tmp_path / "models"
    if not fresh:
        generate(repository)
    before = tree(tmp_path)
    calls = [0]
    owner: object = os if step == "fsync" else Path
    real = getattr(owner, step)

    def failing(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] == nth:
            raise failure
        return real(*arguments)

    monkeypatch.setattr(owner, step, failing)
    expected = RepositoryError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        generate(repository, OTHER)
    assert calls[0] >= nth
    assert tree(tmp_path) == before and repository.exists() is not fresh
    if expected is RepositoryError:
        assert str(caught.value).endswith("No space left on device; nothing was written")
    monkeypatch.undo()
    generate(repository, OTHER)
    assert changes(repository, files(OTHER, ORIGIN)) == []


def test_the_diff_is_one_that_patch_takes(tmp_path: Path) -> None:
    generate(tmp_path)
    (tmp_path / "chat/config.pbtxt").write_text("mine, without an end")
    (tmp_path / "embed/config.pbtxt").unlink()
    wanted = changes(tmp_path, files(OTHER, ORIGIN))
    patch = "".join(change.diff() for change in wanted)
    subprocess.run(["patch", "-p0", "--quiet", "-d/"], input=patch.encode(), check=True)
    assert changes(tmp_path, files(OTHER, ORIGIN)) == []


# The flags


def test_flags_are_those_that_the_models_need_and_the_plans_own_win() -> None:
    plain = {knob.name: knob.value for knob in flags(plan(embed()))}
    assert plain == {
        "--model-control-mode": "explicit",
        "--load-model": "embed",
        "--metrics-config": "summary_latencies=true",
    }
    own = (Knob("--cache-config", "local,size=1048576", "small"), Knob("--rate-limit-resource", "card:2:0", ""))
    full = [f"{k.name}={k.value}" for k in flags(plan(embed(response_cache=True, rate_limit={"card": 1}), flags=own))]
    assert full == [
        "--model-control-mode=explicit",
        "--load-model=embed",
        "--rate-limit=execution_count",
        "--metrics-config=summary_latencies=true",
        "--cache-config=local,size=1048576",
        "--rate-limit-resource=card:2:0",
    ]


def test_the_file_of_flags_is_read_alike_by_a_shell_and_by_us(tmp_path: Path) -> None:
    own = (
        Knob("--rate-limit-resource", "card:2:0", "one --load-model=at a time\n--bad"),
        Knob("--exit-on-error", "", ""),
    )
    text = files(plan(chat(), embed(rate_limit={"card": 1}), flags=own), ORIGIN)[PurePath("serve.args")]
    (tmp_path / "serve.args").write_text(text)
    printed = ["sh", "-c", "printf '%s\\n' $(grep -v '^#' serve.args)"]
    words = subprocess.run(printed, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert words == read(text) == shlex.split(" ".join(words))
    assert words[1:3] == ["--load-model=chat", "--load-model=embed"] and words[-1] == "--exit-on-error"


@pytest.mark.parametrize(
    "line", ["-v", "rate-limit", "--a b", "--a=b c", "--a=$(b)", "--a=*", "--A=1", "--=1", "--a='b'"]
)
def test_a_line_that_is_no_flag_is_told(line: str) -> None:
    with pytest.raises(FlagError, match=r"^3: .* is not allowed; one flag a line, as --name=value$"):
        read(f"# a comment\n\n{line}\n--good=1\n")
    name, _, value = line.partition("=")
    with pytest.raises(FlagError, match=r"^serve.args: .* is not allowed"):
        files(plan(flags=(Knob(name, value, ""),)), ORIGIN)
