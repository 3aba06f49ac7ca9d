"""What the edge to Triton reads of an instance's description, without a Triton: parameters, and the instance's card."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from decode.config import ConfigError
from decode.options import ServiceOptions
from decode.supervision import OPTIONS


@pytest.fixture
def triton_io(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The edge over names only, where Triton's Python module would be."""
    codes = SimpleNamespace(INVALID_ARG=1, UNAVAILABLE=2, CANCELLED=3, INTERNAL=4)
    pb_utils = SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1, TritonError=codes)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb_utils)
    monkeypatch.delitem(sys.modules, "decode.triton_io", raising=False)
    monkeypatch.delenv(OPTIONS, raising=False)
    yield importlib.import_module("decode.triton_io")
    sys.modules.pop("decode.triton_io", None)


def instance(kind: str, card: int, **parameters: str) -> dict[str, str]:
    """What Triton tells a new instance of itself."""
    config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": kind,
        "model_instance_device_id": str(card),
    }


@pytest.mark.parametrize(
    ("kind", "card", "asked", "device"),
    [
        ("GPU", 0, "cuda", "cuda:0"),
        ("GPU", 3, "cuda", "cuda:3"),
        ("GPU", 3, "cuda:1", "cuda:1"),  # one who names a card means it
        ("GPU", 3, "cpu", "cpu"),
        ("CPU", 0, "cpu", "cpu"),
        ("CPU", 0, "cuda", "cuda"),  # torch's own default
    ],
)
def test_an_instance_of_a_group_with_cards_takes_its_own(
    triton_io: Any, kind: str, card: int, asked: str, device: str
) -> None:
    assert triton_io.options_from(instance(kind, card, device=asked, max_num_seqs="5")) == ServiceOptions(
        device=device, max_num_seqs=5
    )


def test_the_launchers_options_win_and_are_checked_alike(triton_io: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, json.dumps({"device": "cuda"}))
    assert triton_io.options_from(instance("GPU", 2, device="cpu")).device == "cuda:2"
    monkeypatch.setenv(OPTIONS, json.dumps({"device": "gpu"}))
    with pytest.raises(ConfigError, match=r"^parameters.device: 'gpu' is not allowed; cpu, cuda or cuda:N$"):
        triton_io.options_from(instance("GPU", 2))


def test_a_model_without_parameters_has_the_defaults(triton_io: Any) -> None:
    args = instance("CPU", 0) | {"model_config": "{}"}
    assert triton_io.options_from(args) == ServiceOptions()
