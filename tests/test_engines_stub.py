"""The numpy that Triton's Python stub was not built for is told at load, before a request could get wrong numbers.

That the real stub and the numpy of this environment pass the check is what every test of a served engine shows.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


def check_numpy(monkeypatch: pytest.MonkeyPatch, corrupt: Any) -> None:
    """The check, on a stub that hands `corrupt(array)` back for an array that went through it."""

    class Tensor:
        def __init__(self, name: str, array: Any) -> None:
            self.array = array

        def to_dlpack(self) -> Any:
            return self.array

        @classmethod
        def from_dlpack(cls, name: str, capsule: Any) -> Tensor:
            return cls(name, corrupt(capsule))

        def as_numpy(self) -> Any:
            return self.array

    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace(Tensor=Tensor))
    monkeypatch.delitem(sys.modules, "decode.stub", raising=False)
    try:
        importlib.import_module("decode.stub").check_numpy()
    finally:
        sys.modules.pop("decode.stub", None)


def test_a_stub_that_hands_arrays_back_whole_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    check_numpy(monkeypatch, lambda array: array.copy())


@pytest.mark.parametrize("corrupt", [np.zeros_like, lambda array: array[::-1], lambda array: array[:3]])
def test_a_stub_that_corrupts_them_is_refused(monkeypatch: pytest.MonkeyPatch, corrupt: Any) -> None:
    with pytest.raises(RuntimeError, match=r"does not work with this Triton's Python stub .*pip install 'numpy<2'"):
        check_numpy(monkeypatch, corrupt)
