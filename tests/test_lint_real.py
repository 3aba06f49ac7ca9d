"""What the real Triton does with every bad repository: each rule says the truth about it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lint_pairs_launch
import lint_pairs_models
import pytest
from lint_pairs import Pair
from lint_pairs_launch import FLAGS
from lint_server import assert_refused, assert_taken, config_of, loaded, serve
from plain_triton import Triton, triton
from test_lint import PAIRS

from config_gen.lint.flags import KNOWN
from gapless.tritonserver import find_server

BY_RULE = {pair.rule: pair for pair in PAIRS}

TOGETHER = loaded(lint_pairs_models.PAIRS + lint_pairs_launch.PAIRS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with serve(TOGETHER, tmp_path_factory.mktemp("together") / "models") as started:
        yield started


def test_refused(server: Triton) -> None:
    """Not loaded, and for the reason that the rule gives."""
    assert_refused(server, TOGETHER)


def test_taken(server: Triton) -> None:
    assert_taken(server, TOGETHER)


def test_a_server_that_hides_failures_says_that_it_is_ready(server: Triton) -> None:
    """Rule failure-hidden, of both flags: some were refused at the poll, some while they were loaded."""
    assert "name-mismatch" in server.log and server.states()["name-mismatch"] == ""
    assert server.states()["tensor-dims"] == "UNAVAILABLE"
    assert server.call("/v2/health/ready")[0] == 200


@contextmanager
def serving(rule: str, folder: Path) -> Iterator[Triton]:
    pair = BY_RULE[rule]
    with triton(pair.write(folder / "models", pair.bad), "--exit-on-error=false") as server:
        yield server


def test_a_folder_in_the_place_of_a_configuration_ends_the_server(tmp_path: Path) -> None:
    with serving("config-unreadable", tmp_path) as server:
        assert not server.up(30) and server.process.wait(20) < 0
        assert "std::length_error" in server.log


def test_a_warm_up_batch_that_is_too_large_fails_or_ends_the_server(tmp_path: Path) -> None:
    """A race: about every second start ends by a segmentation fault."""
    with serving("warmup-batch", tmp_path) as server:
        if server.up(30):
            assert server.states() == {"warmup-batch": "UNAVAILABLE"}
            assert "max allowed is 4" in server.log
        else:
            assert server.process.wait(20) < 0


def test_a_request_to_passive_instances_ends_the_server(tmp_path: Path) -> None:
    with serving("passive-only", tmp_path) as server:
        assert server.up(30) and server.states() == {"passive-only": "READY"}
        with pytest.raises(ConnectionError):
            server.infer("passive-only")
        assert server.process.wait(20) < 0


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.outcome == "ends"], ids=lambda pair: pair.rule)
def test_ends_for_its_flags(pair: Pair, tmp_path: Path) -> None:
    with triton(pair.write(tmp_path / "models", pair.bad), *pair.flags) as server:
        assert not server.up(30) and server.process.wait(20) == 1
        assert pair.told in server.log


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """One server with all flags that are taken, in explicit mode: it loads what it is told to."""
    repository = tmp_path_factory.mktemp("launched") / "models"
    pairs = [BY_RULE[rule] for rule in ("rate-resource", "no-model-file", "rate-stray")]
    for pair in pairs:
        pair.write(repository, pair.bad)
    pairs += [pair for pair in FLAGS if pair.outcome == "taken"]
    flags = dict.fromkeys(flag for pair in pairs for flag in pair.flags)
    with triton(repository, *flags) as started:
        assert started.up(30), started.log
        yield started


def test_flags_that_are_taken_and_do_nothing(launched: Triton) -> None:
    assert launched.call("/v2/health/ready")[0] == 200  # nothing-loaded
    assert set(launched.states().values()) == {""}
    assert BY_RULE["deprecated-flag"].told in launched.log
    assert launched.call("/v2/repository/models/rate-stray/load", {})[0] == 200
    assert launched.infer("rate-stray").status == 200
    page = launched.call("/metrics", port="metrics")[1]
    assert "nv_inference_count" in page
    assert "summary" not in page and "quantile" not in page  # metrics-key, metrics-quantiles
    assert "histogram" not in page  # metrics-histogram


def test_a_resource_that_is_too_small(launched: Triton) -> None:
    pair = BY_RULE["rate-resource"]
    status, text = launched.call(f"/v2/repository/models/{pair.rule}/load", {})
    assert status == 400 and pair.told in text


def test_a_load_without_a_model_file_never_ends(launched: Triton) -> None:
    pair = BY_RULE["no-model-file"]
    with pytest.raises(TimeoutError):
        launched.call(f"/v2/repository/models/{pair.rule}/load", {}, timeout=12)
    assert pair.told in launched.log and launched.states()[pair.rule] == "LOADING"


def test_every_flag_that_this_server_lists_is_known(launched: Triton) -> None:
    server = find_server()
    done = subprocess.run([server.command[0], "--help"], env=dict(server.environment), capture_output=True, text=True)
    listed = set(re.findall(r"^ {2}--([\w-]+)", done.stdout + done.stderr, re.MULTILINE))
    assert listed and listed == KNOWN


def test_what_a_model_is_when_it_is_taken(server: Triton) -> None:
    key = {"a": {"string_value": "last"}}
    assert config_of(server, "duplicate-key")["parameters"] == key
    assert config_of(server, "placeholder-text")["parameters"] == {"a": {"string_value": "${b}"}}
    assert server.call("/v2/models/version-missing/versions/3/ready")[0] == 400
    assert server.call("/v2/models/old-version/versions/1/ready")[0] == 400
    assert server.call("/v2/models/old-version/versions/2/ready")[0] == 200


def test_requests_that_fail(server: Triton) -> None:
    assert "expected 2 inputs but got 1 inputs" in server.infer("duplicate-input").text
    assert '"outputs":[]' in server.infer("no-tensors").text
    refused = server.infer("batch-in-dims", shape=(1, 3, 2, 2))
    assert refused.status == 400 and "Expected [-1,-1,3,2,2]" in refused.text


def test_a_warm_up_that_never_ran(server: Triton) -> None:
    assert server.infer("warmup-none")["runs"] == 1
    assert server.infer("warmup-unknown")["runs"] == 2
