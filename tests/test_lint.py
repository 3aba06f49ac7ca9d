"""Every lint rule finds its bad repository and nothing else there, and leaves its good one alone."""

from __future__ import annotations

from pathlib import Path

import lint_pairs_launch
import lint_pairs_models
import lint_pairs_queues
import pytest
from lint_pairs import Pair
from plans import embed
from repositories import chat_repository, configure

from config_gen.lint.findings import judge, rules
from config_gen.lint.repository import read
from gapless.model_files import add_model

PAIRS = lint_pairs_models.PAIRS + lint_pairs_queues.PAIRS + lint_pairs_launch.PAIRS
ROOT = Path(__file__).resolve().parent.parent


def test_every_rule_has_one_pair_and_says_what_to_do() -> None:
    assert sorted(pair.rule for pair in PAIRS) == sorted(rules())
    for rule in rules().values():
        assert rule.why.endswith((".", ")")) and rule.fix.endswith("."), rule.id
        assert rule.severity in ("error", "warning", "note")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.rule)
def test_the_bad_one_breaks_this_rule_only(pair: Pair, tmp_path: Path) -> None:
    found = judge(read(pair.write(tmp_path, pair.bad)))
    assert sorted({finding.rule.id for finding in found}) == sorted((pair.rule, *pair.also))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.rule)
def test_the_good_one_breaks_none(pair: Pair, tmp_path: Path) -> None:
    assert judge(read(pair.write(tmp_path, pair.good))) == []


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.rule)
def test_what_triton_refuses_is_an_error_and_what_it_takes_is_none(pair: Pair) -> None:
    """Taken and still an error is what fails with the first request."""
    expected = pair.outcome != "taken" or pair.rule == "duplicate-input"
    exceptions = {"new-field": "warning", "auto-with-gpus": "note"}  # refused by some servers only
    wanted = exceptions.get(pair.rule)
    severity = rules()[pair.rule].severity
    assert severity == wanted if wanted else (severity == "error") == expected


def test_a_generated_chat_model_is_clean(tmp_path: Path, smollm2_dir: Path) -> None:
    assert judge(read(chat_repository(tmp_path, smollm2_dir))) == []


def test_what_gapless_build_and_generate_write_is_clean(tmp_path: Path) -> None:
    version = tmp_path / "embed" / "1"
    version.mkdir(parents=True)
    add_model("onnx", version)
    configure(tmp_path, embed())
    assert [finding.rule.id for finding in judge(read(tmp_path))] == ["engine-files"]
    (version / "engine.json").write_text("{}")
    assert judge(read(tmp_path)) == []
