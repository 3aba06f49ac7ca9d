"""Data that cannot be used are refused in one line that names them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import builder_models
import numpy as np
import pytest
from PIL import Image

from builders.data import FEWEST, open_data
from builders.errors import BuildError

RANDOM = np.random.default_rng(0)


def picture(path: Path, width: int = 200, height: int = 150, seed: int = 0) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def lines(path: Path, *texts: str) -> str:
    path.write_text("\n".join(texts) + "\n")
    return str(path)


def some(prefix: str, count: int) -> list[str]:
    return [f"{prefix} {at}" for at in range(count)]


def refused(calibration: list[str], evaluation: list[str], kind: str) -> str:
    with pytest.raises(BuildError) as caught:
        open_data(calibration, evaluation, kind)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_items_on_both_sides_are_refused_and_counted(tmp_path: Path) -> None:
    left = lines(tmp_path / "a.txt", *some("text", 40))
    right = lines(tmp_path / "b.txt", *some("other", 37), "text 3", "text 4", "text 3")
    assert refused([left], [right], "text") == "evaluation: 2 of 39 items are in calibration, too; allowed: none"


@pytest.mark.parametrize("evaluation", [False, True])
def test_too_few_items_are_refused(tmp_path: Path, evaluation: bool) -> None:
    few = lines(tmp_path / "few.txt", *some("text", FEWEST - 1 if evaluation else 2 * FEWEST - 1))
    enough = lines(tmp_path / "enough.txt", *some("other", FEWEST))
    told = refused([enough], [few], "text") if evaluation else refused([few], [], "text")
    assert told.startswith(f"evaluation: {FEWEST - 1} items; at least {FEWEST} are needed")


def objects(path: Path) -> None:
    np.savez(path, x=np.array([{"a": 1}] * 40, dtype=object))


def flipped(path: Path) -> None:
    np.savez_compressed(path, x=RANDOM.standard_normal((400, 4)))
    damaged = bytearray(path.read_bytes())
    damaged[200:300] = bytes(100)
    path.write_bytes(bytes(damaged))


def array_file(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((40, 4)))


def zipped_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", "this is no array")


WRONG_FILES: dict[str, Callable[[Path], object]] = {
    "pickles": objects,
    "text": lambda path: path.write_text("hello"),
    "empty": lambda path: path.write_bytes(b""),
    "damaged": flipped,
    "one array": array_file,
    "a zip of something else": zipped_text,
    "missing": lambda path: None,
}


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_an_npz_that_is_none_is_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "data.npz"
    WRONG_FILES[wrong](path)
    told = refused([str(path)], [], "arrays")
    assert told.startswith(f"calibration: {path}: ")
    assert told.endswith("No such file or directory" if wrong == "missing" else "is no .npz of plain arrays")


def test_arrays_of_different_numbers_of_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    for arrays in ({"x": np.zeros((3, 2)), "y": np.zeros((4, 2))}, {}, {"x": np.zeros(())}):
        np.savez(path, **arrays)
        assert "allowed: as many rows in each" in refused([str(path)], [], "arrays")


@pytest.mark.parametrize("kind", ["text", "image", "arrays"])
def test_empty_data_are_refused(tmp_path: Path, kind: str) -> None:
    folder, file, npz = tmp_path / "folder", tmp_path / "empty.txt", tmp_path / "empty.npz"
    folder.mkdir()
    file.write_text("\n \n")
    np.savez(npz, x=np.zeros((0, 4)))
    name = str({"text": file, "image": folder, "arrays": npz}[kind])
    assert refused([name], [], kind).startswith(f"calibration: {name} holds nothing; allowed: ")


def test_data_of_another_kind_are_refused(tmp_path: Path) -> None:
    texts = lines(tmp_path / "a.txt", *some("text", 40))
    npz = str(builder_models.write_npz(tmp_path / "a.npz"))
    assert refused([texts], [], "arrays").endswith("holds a str; allowed for this model: an array for each input")
    assert refused([npz], [], "text").endswith("holds a dict; allowed for this model: texts")
    assert "holds a dict; allowed for this model: pictures" in refused([npz], [], "image")
    assert refused(["builder_models:rows"], [], "text").startswith("calibration: builder_models:rows holds a dict")


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    bad = tmp_path / "b.jpg"
    bad.write_bytes(b"GIF89a and so on")
    told = refused([str(tmp_path)], [], "image")
    assert told.startswith(f"calibration: {bad}: image: 16 bytes that are no JPEG or PNG picture")


def test_a_binary_file_is_no_list_of_texts(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png")
    assert (
        refused([str(path)], [], "text") == f"calibration: {path}: is not UTF-8 text; allowed: .npz, or a text a line"
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "no/such/file.txt",
            "no/such/file.txt: no such file; a file .npz or .txt, a folder, wheel:NAME or module:call",
        ),
        ("no_such_module:f", "no_such_module cannot be imported"),
        ("builder_models:absent", "builder_models has no absent"),
        ("builder_models:FLOAT", "is a int"),
        ("builder_models:raising_data", "builder_models:raising_data: RuntimeError: no data today"),
        ("builder_models:nothing", "builder_models:nothing returned a NoneType; allowed: "),
        ("builder_models:one_string", "builder_models:one_string returned a str; allowed: "),
        ("wheel:not a name/*.png", "'not a name' is not a wheel's name"),
        ("wheel:scikit-image/nothing-like-it.png", "wheel:scikit-image/nothing-like-it.png holds nothing"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, told: str) -> None:
    assert told in refused([name], [], "text")
