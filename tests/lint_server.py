"""One tritonserver with all bad models that do not end it, each under the name of its rule."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lint_pairs import Pair
from plain_triton import Triton, triton


def loaded(pairs: Sequence[Pair]) -> list[Pair]:
    """Those that can be served together, without flags."""
    return [pair for pair in pairs if pair.outcome in ("refused", "taken") and "serve.args" not in pair.bad]


@contextmanager
def serve(pairs: Sequence[Pair], repository: Path) -> Iterator[Triton]:
    for pair in pairs:
        pair.write(repository, pair.bad)
    with triton(repository, "--exit-on-error=false", "--strict-readiness=false") as started:
        assert started.up(120), started.log
        yield started


def assert_refused(server: Triton, pairs: Sequence[Pair]) -> None:
    """Not loaded, and for the reason that the rule gives."""
    states, lines = server.states(), server.log.splitlines()
    refused = [pair for pair in pairs if pair.outcome == "refused"]
    ready = [pair.rule for pair in refused if states.get(pair.rule) == "READY"]
    silent = [pair.rule for pair in refused if not any(pair.rule in line and pair.told in line for line in lines)]
    assert refused and (ready, silent) == ([], [])


def assert_taken(server: Triton, pairs: Sequence[Pair]) -> None:
    states = server.states()
    taken = [pair.rule for pair in pairs if pair.outcome == "taken"]
    assert taken and {rule: states.get(rule) for rule in taken} == dict.fromkeys(taken, "READY")


def config_of(server: Triton, model: str) -> dict[str, Any]:
    """As Triton understood it."""
    found: dict[str, Any] = json.loads(server.call(f"/v2/models/{model}/config")[1])
    return found
