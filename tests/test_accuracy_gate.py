"""int8 weights serve a model only when what they cost was measured, said and found small."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from decode import accuracy_gate, assembly
from decode.config import ConfigError
from decode.executors import accuracy
from decode.executors.model_config import ModelConfig
from decode.options import ServiceOptions

GOOD = {"tokens": 1300.0, "perplexity_fp32": 18.71, "perplexity_int8": 19.02, "ratio": 1.0166, "agreement": 0.93}
OPTIONS = ServiceOptions(weights="int8", kv_cache_memory=16 * 2**20, max_model_len=128)


@pytest.fixture
def model(smollm2_dir: Path, tmp_path: Path) -> Path:
    """The built model in a folder of its own, without a record."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in smollm2_dir.glob("[!.]*"):
        if path.name != accuracy_gate.RECORD:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Each measurement, as the number of tokens it was given; all find GOOD."""
    calls: list[int] = []

    def compare(model_dir: Path, texts: list[Any]) -> dict[str, float]:
        calls.append(sum(map(len, texts)))
        return {**GOOD, "passed": 1.0}

    monkeypatch.setattr(accuracy, "compare", compare)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def test_int8_of_a_real_model_passes_and_says_what_it_costs(smollm2_dir: Path, capfd: pytest.CaptureFixture) -> None:
    config = assembly.engine_config(ModelConfig.read(smollm2_dir), OPTIONS)
    assert assembly.build_executor(smollm2_dir, config, OPTIONS).weights_bytes > 0
    [line] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("int8:")]
    found = re.fullmatch(
        r"int8: perplexity (\S+) against (\S+) of fp32 \(([+-]\S+)%, limit 3%\), greedy agreement (\d+)%: used", line
    )
    assert found is not None
    ours, fp32, more, agreement = map(float, found.groups())
    assert (ours / fp32 - 1) * 100 == pytest.approx(more, abs=0.1) and more <= 3 and agreement >= 90


def test_a_measurement_is_made_once(model: Path, measured: list[int], capfd: pytest.CaptureFixture) -> None:
    first = accuracy_gate.gate(model)
    assert accuracy_gate.gate(model) == first == GOOD
    assert len(measured) == 1 and 1000 < measured[0] < 2000
    line = "int8: perplexity 19.02 against 18.71 of fp32 (+1.7%, limit 3%), greedy agreement 93%: used"
    assert capfd.readouterr().err.splitlines() == [line, line]


@pytest.mark.parametrize("change", ["weights", "code", "broken record"])
def test_a_record_of_something_else_is_not_believed(
    model: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    accuracy_gate.gate(model)
    if change == "weights":
        weights = (model / "model.safetensors").resolve()
        (model / "model.safetensors").unlink()
        os.link(weights, model / "model.safetensors")
        stat = os.stat_result
        real = Path.stat

        def later(self: Path, **how: Any) -> stat:
            found = real(self, **how)
            return os.stat_result([*found[:8], found[8] + 1, found[9]], {"st_mtime_ns": found.st_mtime_ns + 1})

        monkeypatch.setattr(Path, "stat", later)
    elif change == "code":
        monkeypatch.setattr(accuracy_gate, "__file__", __file__)
    else:
        (model / accuracy_gate.RECORD).write_text("{")
    accuracy_gate.gate(model)
    assert len(measured) == 2


def test_a_model_folder_that_takes_no_files_is_measured_once_too(
    model: Path, measured: list[int], tmp_path: Path
) -> None:
    (model / accuracy_gate.RECORD).mkdir()  # nothing can be put there, not even by root
    accuracy_gate.gate(model)
    accuracy_gate.gate(model)
    assert len(measured) == 1
    [record] = (tmp_path / "cache" / "gapless").glob("*.json")
    assert json.loads(record.read_text())["figures"] == GOOD
    assert [path.name for path in model.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("perplexity", "more"), [(19.28, "+3.0%"), (40.0, "+113.8%"), (float("nan"), "+nan%")])
def test_int8_that_costs_too_much_is_refused_with_the_numbers(
    model: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, perplexity: float, more: str
) -> None:
    bad = {**GOOD, "perplexity_int8": perplexity, "ratio": perplexity / 18.71, "agreement": 0.41}
    monkeypatch.setattr(accuracy, "compare", lambda *_: bad)
    config = assembly.engine_config(ModelConfig.read(model), OPTIONS)
    for _ in range(2):  # measured, then from the record
        with pytest.raises(ConfigError) as error:
            assembly.build_executor(model, config, OPTIONS)
        assert str(error.value) == (
            f"weights: int8 is not allowed for {model}: int8: perplexity {perplexity:.2f} against 18.71 of fp32 "
            f"({more}, limit 3%), greedy agreement 41%; use weights fp32"
        )


def test_the_record_is_not_for_the_repository() -> None:
    root = Path(__file__).resolve().parent.parent
    for folder in ("model_repository/chat/1", "out/models/smollm2"):
        name = f"{folder}/{accuracy_gate.RECORD}"
        ignored = subprocess.run(["git", "-c", "safe.directory=*", "check-ignore", "-q", name], cwd=root)
        assert ignored.returncode == 0, name
