"""Data for calibration and the gate: every form of it, and the split."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builder_models
import numpy as np
from PIL import Image

from builders.data import CROPS, MOST, SMALLEST_CROP, digest_of, open_data
from builders.precisions import Precisions
from builders.progress import quiet
from engines.stamp import Feed
from loadtest.prompts import sentences

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


def test_a_text_file_is_split_into_disjoint_halves_of_distinct_lines(tmp_path: Path) -> None:
    name = lines(tmp_path / "a.txt", *some("text", 40), "", "  ", *some("text", 40))
    left, right = open_data([name], [], "text")
    assert sorted([*left, *right]) == sorted(some("text", 40))
    assert not set(left) & set(right) and len(left) == len(right) == 20


def test_names_in_a_list_are_read_together_and_each_side_keeps_its_own(tmp_path: Path) -> None:
    names = [lines(tmp_path / f"{at}.txt", *some(at, 20)) for at in "abc"]
    left, right = open_data(names[:2], names[2:], "text")
    assert list(left) == some("a", 20) + some("b", 20) and list(right) == some("c", 20)


def test_arrays_come_by_row_with_every_input(tmp_path: Path) -> None:
    x, ids = RANDOM.standard_normal((32, 4)).astype(np.float32), np.arange(64).reshape(32, 2)
    np.savez(tmp_path / "a.npz", x=x, ids=ids)
    left, right = open_data([str(tmp_path / "a.npz")], [], "arrays")
    for side, first in ((left, 0), (right, 1)):
        assert len(side) == 16
        for at, item in enumerate(side):
            assert set(item) == {"x", "ids"}
            np.testing.assert_array_equal(item["x"], x[first + 2 * at])
            np.testing.assert_array_equal(item["ids"], ids[first + 2 * at])


def test_numbers_of_one_row_are_items_as_well(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(-20, 20), y=np.full(40, 10**15))
    left, right = open_data([str(tmp_path / "a.npz")], [], "arrays")
    assert [int(item["x"]) for item in (*left, *right)] == [*range(-20, 20, 2), *range(-19, 20, 2)]


def test_a_callable_gives_texts_or_arrays() -> None:
    left, right = open_data(["builder_models:texts"], [], "text")
    assert sorted([*left, *right]) == sorted(builder_models.texts())
    left, _ = open_data(["builder_models:rows"], [], "arrays")
    np.testing.assert_array_equal(left[1]["x"], builder_models.rows()["x"][2])


def test_pictures_of_a_folder_are_filled_up_by_squares_cut_out_of_that_sides_pictures(tmp_path: Path) -> None:
    for side, seed in (("c", 0), ("e", 10)):
        for at, kind in enumerate(("png", "jpg", "jpeg", "PNG")):
            picture(tmp_path / side / "deep" / f"{at}.{kind}", seed=seed + at)
    (tmp_path / "c" / "notes.txt").write_text("not a picture")
    sides = dict(zip("ce", open_data([str(tmp_path / "c")], [str(tmp_path / "e")], "image"), strict=True))
    for side, items in sides.items():
        files = [path for path in sorted((tmp_path / side).rglob("*")) if path.suffix not in ("", ".txt")]
        whole = [np.asarray(Image.open(path).convert("RGB")) for path in files]
        assert len(items) == CROPS
        assert [bytes(item) for item in items[:4]] == [path.read_bytes() for path in files]
        for crop in items[4:]:
            assert crop.shape[0] == crop.shape[1] >= SMALLEST_CROP
        assert all(_cut_from(whole, crop) for crop in items[4::40]) and len({c.tobytes() for c in items[4:]}) > 200
    again = open_data([str(tmp_path / "c")], [str(tmp_path / "e")], "image")
    assert all(np.array_equal(a, b) for a, b in zip(again[0][4:], sides["c"][4:], strict=True))


def _cut_from(pictures: list[Any], crop: Any) -> bool:
    size = crop.shape[0]
    for pixels in pictures:
        for top in range(pixels.shape[0] - size + 1):
            for left in np.flatnonzero((pixels[top, : pixels.shape[1] - size + 1] == crop[0, 0]).all(1)):
                if np.array_equal(pixels[top : top + size, left : left + size], crop):
                    return True
    return False


def test_small_pictures_are_taken_as_they_are(tmp_path: Path) -> None:
    for at in range(40):
        picture(tmp_path / f"{at:02}.png", 28, 28, seed=at)
    left, right = open_data([str(tmp_path)], [], "image")
    assert len(left) == len(right) == 20


def test_pictures_inside_an_installed_package_are_named_by_pattern() -> None:
    left, right = open_data(["wheel:scikit-image/astronaut.png"], ["wheel:scikit-image/*offee.png"], "image")
    assert len(left) == len(right) == CROPS
    sizes = [Image.open(io.BytesIO(side[0])).size for side in (left, right)]
    assert sizes == [(512, 512), (600, 400)]


def test_much_data_is_thinned_over_its_whole_length(tmp_path: Path) -> None:
    left, right = open_data([lines(tmp_path / "a.txt", *some("text", 2000))], [], "text")
    assert len(left) == len(right) == MOST
    assert left[0] == "text 0" and int(left[-1].split()[1]) > 1990 and len(set(left)) == MOST


def test_black_pictures_of_two_shapes_are_two_pictures() -> None:
    tall, wide = np.zeros((10, 20, 3), np.uint8), np.zeros((20, 10, 3), np.uint8)
    assert digest_of(tall) != digest_of(wide)
    assert digest_of({"a": tall}) != digest_of({"b": tall})
    assert digest_of(tall) == digest_of(tall.copy())


def test_texts_have_data_of_their_own_when_nothing_is_named() -> None:
    exported: Any = SimpleNamespace(feed=Feed("text", max_length=64))
    fields = {"source": "wheel:any", "accuracy": {"metric": "cosine", "min": 0.99}}
    model = builder_models.onnx_model(precision="int8", **fields)
    preparation: Any = None
    left, right = Precisions(exported, model, preparation, quiet, force=False)._items
    assert len(left) > 100 and len(right) > 100 and {*left, *right} <= set(sentences()) and not set(left) & set(right)
    plain = builder_models.onnx_model(source="wheel:any")
    assert Precisions(exported, plain, preparation, quiet, force=False)._items == []
