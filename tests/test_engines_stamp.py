"""The stamp of an engine: read back as written; what does not fit it is refused with the command that rebuilds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_models import REBUILD, array_engine, text_engine

import engines.stamp
from engines.errors import EngineError
from engines.session import open_session
from engines.stamp import FILE, Stamp, digest

PLAN = {
    "runtime": "tensorrt",
    "tools": {"tensorrt": "10.13.2.6"},
    "compute_capabilities": ("8.9", "9.0"),
}


def refusal(folder: Path) -> str:
    """Why the engine in `folder` is not opened: one line."""
    with pytest.raises(EngineError) as caught:
        open_session(Stamp.read(folder), folder)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def tensorrt(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to say which TensorRT and which GPU are here."""

    def here(version: str | None, capability: str | None) -> None:
        def load(name: str) -> Any:
            assert name == "tensorrt"
            if version is None:
                raise ImportError(name)
            return SimpleNamespace(__version__=version)

        monkeypatch.setattr(engines.stamp.importlib, "import_module", load)
        monkeypatch.setattr(engines.stamp, "compute_capability", lambda: capability)

    return here


def test_everything_in_a_stamp_is_read_back(tmp_path: Path) -> None:
    more = {"batch_buckets": (1, 4), "length_buckets": (8, 12), "gate": {"asked": "int8", "rows": [1.5]}, **PLAN}
    folder = text_engine(tmp_path / "one", **more)
    stamp = Stamp.read(folder)
    stamp.write(tmp_path)
    assert Stamp.read(tmp_path) == stamp
    written = json.loads((folder / FILE).read_text())
    assert written["feed"] == {"kind": "text", "max_length": 12, "size": 0, "mean": [], "std": []}
    assert (stamp.batch_buckets, stamp.length_buckets, stamp.gate["asked"]) == ((1, 4), (8, 12), "int8")
    assert [tensor.shape for tensor in stamp.inputs] == [(-1, -1), (-1, -1)]


def test_a_digest_is_the_sha256_of_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")  # the example of FIPS 180-2
    assert digest(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_file_that_changed_or_is_missing_is_refused(tmp_path: Path, name: str) -> None:
    folder = text_engine(tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    changed = refusal(folder)
    assert f"{name} is not the file that was built" in changed and changed.endswith(f"rebuild: {REBUILD}")
    (folder / name).unlink()
    missing = refusal(folder)
    assert f"{name} is missing" in missing and missing.endswith(f"rebuild: {REBUILD}")


@pytest.mark.parametrize(
    ("here", "gpu", "told"),
    [
        (None, "8.9", "needs tensorrt 10.13.2.6, which is not installed here"),
        ("10.12.0.36", "8.9", "was built with tensorrt 10.13.2.6, and 10.12.0.36 is installed here"),
        ("10.14.0.1", "8.9", "was built with tensorrt 10.13.2.6, and 10.14.0.1 is installed here"),
        ("10.13.2.6", None, "was built for a GPU (8.9, 9.0), and none is here"),
        ("10.13.2.6", "8.0", "was built for compute capability 8.9, 9.0, and this GPU has 8.0"),
    ],
)
def test_a_plan_of_another_machine_is_refused(
    tmp_path: Path, tensorrt: Any, here: str | None, gpu: str | None, told: str
) -> None:
    folder = array_engine(tmp_path, **PLAN)
    tensorrt(here, gpu)
    text = refusal(folder)
    assert text.startswith(f"{folder / 'model.onnx'}: ") and told in text and text.endswith(f"rebuild: {REBUILD}")


@pytest.mark.parametrize(
    ("here", "gpu", "portable", "fits"),
    [
        ("10.13.2.6", "8.9", (), True),
        ("10.13.2.6", "9.0", (), True),
        ("10.14.0.1", "9.0", ("version",), True),
        ("10.12.0.1", "9.0", ("version",), False),
        ("9.20.0.1", "9.0", ("version",), False),
        ("10.13.2.6", "12.0", ("hardware",), True),
        ("10.13.2.6", "7.5", ("hardware",), False),
        ("10.14.0.1", "12.0", ("hardware",), False),
        ("10.14.0.1", "12.0", ("version", "hardware"), True),
    ],
)
def test_what_a_plan_was_made_portable_to_is_let_through(
    tmp_path: Path, tensorrt: Any, here: str, gpu: str, portable: tuple[str, ...], fits: bool
) -> None:
    folder = array_engine(tmp_path, **PLAN, portable=portable)
    tensorrt(here, gpu)
    stamp = Stamp.read(folder)
    if fits:
        stamp.check(folder)
    else:
        with pytest.raises(EngineError, match="rebuild: gapless build"):
            stamp.check(folder)


def test_a_plan_without_its_real_runtime_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real import, of a flavour that is certainly not here."""
    folder = array_engine(tmp_path, runtime="tensorrt", tools={"tensorrt": "10.0.0"}, compute_capabilities=("8.9",))
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)  # as if it were not installed, wherever this runs
    assert "needs tensorrt 10.0.0, which is not installed here" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "format"),
        ({"max_batch_size": "many"}, "max_batch_size"),
        ({"feed": {"max_length": 3}}, "feed.kind"),
        ({"inputs": None}, "inputs"),
    ],
)
def test_a_stamp_of_another_format_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    folder = array_engine(tmp_path)
    record = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(record | change))
    text = refusal(folder)
    assert text.startswith(f"{folder / FILE}: {told}") and "gapless build" in text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"format": 1}'])
def test_a_stamp_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    text = refusal(tmp_path)
    assert str(tmp_path / FILE) in text and "gapless build" in text


def test_a_folder_without_a_stamp_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} holds no engine; run gapless build"
    (tmp_path / FILE).mkdir()
    assert refusal(tmp_path) == f"{tmp_path / FILE}: Is a directory"
