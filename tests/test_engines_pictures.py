"""Pictures to arrays: decoded, cropped and resized as torch does it; what is no picture is refused, alone."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from engines.cuda_pictures import CudaPictures
from engines.errors import ItemError
from engines.pictures import MOST_PIXELS, Pictures, decode, middle
from engines.stamp import Feed

MEAN, STD = (127.0, 110.0, 90.0), (128.0, 50.0, 60.0)
SIZE = 64
FEED = Feed("image", size=SIZE, mean=MEAN, std=STD)
SHAPES = [(64, 64), (100, 150), (301, 200), (73, 74), (40, 30), (500, 61), (640, 480), (7, 200), (2, 2), (3, 2)]


def photograph(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth colours with an edge, so that a wrong crop, axis or channel shows."""
    waves = np.random.default_rng(seed).uniform(0.5, 3, (3, 2))
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    channels = [127 + 100 * np.sin(fy * 3 * y + fx * 2 * x + at) for at, (fy, fx) in enumerate(waves)]
    picture = np.stack(channels, -1)
    picture[y > x] *= 0.8
    return picture.clip(0, 255).astype(np.uint8)


def encoded(picture: NDArray[Any] | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    there = io.BytesIO()
    (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(there, kind, **options)
    return there.getvalue()


def levels(prepared: Any) -> NDArray[np.float64]:
    """Grey levels [size, size, 3] of what was prepared."""
    assert isinstance(prepared, np.ndarray), prepared
    assert prepared.dtype == np.float32 and prepared.shape == (3, SIZE, SIZE)
    return prepared.transpose(1, 2, 0).astype(float) * STD + MEAN


def cropped(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The square in the middle, 7/8 of the shorter side."""
    height, width = picture.shape[:2]
    side = max(1, round(min(height, width) * 7 / 8))
    top, left = (height - side) // 2, (width - side) // 2
    return picture[top : top + side, left : left + side]


def by_definition(picture: NDArray[np.uint8]) -> NDArray[np.float64]:
    """A triangle filter as wide as the scale; summed term by term."""
    crop = cropped(picture)
    scale = len(crop) / SIZE
    reach = max(scale, 1.0)
    weights = np.zeros((SIZE, len(crop)))
    for out in range(SIZE):
        for at in range(len(crop)):
            weights[out, at] = max(0.0, 1 - abs(at + 0.5 - (out + 0.5) * scale) / reach)
    weights /= weights.sum(1, keepdims=True)
    return np.einsum("ih,hwc,jw->ijc", weights, crop.astype(float), weights, optimize=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_middle_is_resized_as_by_definition_and_as_torch_does_it(shape: tuple[int, int]) -> None:
    picture = photograph(*shape)
    crop = torch.tensor(cropped(picture)).permute(2, 0, 1)[None].float()
    by_torch = torch.nn.functional.interpolate(crop, size=(SIZE, SIZE), mode="bilinear", antialias=True)[0]
    [prepared] = Pictures(FEED).prepare([picture])
    for wanted in (by_definition(picture), by_torch.permute(1, 2, 0).numpy()):
        assert np.abs(levels(prepared) - wanted).max() <= 1.6  # Pillow rounds twice to whole levels


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("as_jpeg", [False, True])
def test_the_gpus_way_gives_the_same_within_two_levels(shape: tuple[int, int], as_jpeg: bool) -> None:
    picture = photograph(*shape)
    item = encoded(picture, "JPEG", quality=95) if as_jpeg else picture
    [plain], [other] = Pictures(FEED).prepare([item]), CudaPictures(FEED, device="cpu").prepare([item])
    assert np.abs(levels(plain) - levels(other.numpy())).max() <= 2.001


def test_both_ways_keep_order_and_refuse_the_same() -> None:
    items = [photograph(50, 60, 1), b"no picture", encoded(photograph(90, 70, 2)), b"", photograph(64, 64, 3)]
    plain, other = Pictures(FEED).prepare(items), CudaPictures(FEED, device="cpu").prepare(items)
    assert [str(x) if isinstance(x, ItemError) else None for x in plain] == [
        str(x) if isinstance(x, ItemError) else None for x in other
    ]
    assert [at for at, x in enumerate(plain) if isinstance(x, ItemError)] == [1, 3]
    for at in (0, 2, 4):
        [alone] = Pictures(FEED).prepare([items[at]])
        np.testing.assert_array_equal(plain[at], alone)
    assert CudaPictures(FEED, device="cpu").prepare([b"bad"])[0].args == Pictures(FEED).prepare([b"bad"])[0].args


def test_a_batch_is_padded_with_zeros() -> None:
    items = [photograph(50, 60, seed) for seed in range(3)]
    for way in (Pictures(FEED), CudaPictures(FEED, device="cpu")):
        prepared = way.prepare(items)
        made = np.asarray(way.batch(prepared, 5))
        assert made.shape == (5, 3, SIZE, SIZE) and made.dtype == np.float32 and not made[3:].any()
        for row, item in zip(made, prepared, strict=False):
            np.testing.assert_array_equal(row, np.asarray(item))
        assert np.asarray(way.batch(prepared, 3)).shape == (3, 3, SIZE, SIZE)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_encoded_pictures_are_decoded(kind: str) -> None:
    picture = photograph(90, 120)
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    decoded = np.asarray(decode(encoded(picture, kind, **options)))
    assert np.abs(decoded.astype(int) - picture).max() <= (6 if kind == "JPEG" else 0)


def test_a_large_jpeg_decoded_at_a_fraction_gives_nearly_the_same() -> None:
    picture = photograph(1500, 1100)
    [small] = Pictures(FEED).prepare([encoded(picture, "JPEG", quality=95)])
    assert np.abs(levels(small) - by_definition(picture)).mean() < 1.5
    assert min(decode(encoded(picture, "JPEG"), SIZE).size) < 1100  # it was decoded at a fraction
    assert min(decode(encoded(picture, "JPEG"), SIZE).size) * 7 / 8 >= SIZE


def test_other_kinds_of_pixels_become_red_green_blue() -> None:
    picture = Image.fromarray(photograph(40, 50))
    grey = picture.convert("L")
    assert np.array_equal(decode(encoded(grey)), np.stack([np.asarray(grey)] * 3, -1))
    assert np.ptp(np.asarray(decode(encoded(grey, "JPEG"))), axis=-1).max() == 0
    few = picture.quantize(16)
    colours = np.array(few.getpalette()).reshape(-1, 3)
    assert np.array_equal(decode(encoded(few)), colours[np.asarray(few)])
    clear = picture.copy()
    clear.putalpha(grey)
    assert np.array_equal(decode(encoded(clear)), np.asarray(picture))  # colours as they are, under nothing
    two = grey.point(lambda value: 255 if value > 127 else 0).convert("1")
    assert np.array_equal(decode(encoded(two)), np.stack([np.asarray(two, np.uint8) * 255] * 3, -1))
    ink = picture.convert("CMYK")
    assert decode(encoded(ink, "JPEG")).mode == "RGB"


def test_sixteen_bits_a_grey_pixel_keep_their_brightness() -> None:
    deep = (np.arange(40 * 50, dtype=np.uint32).reshape(40, 50) * 32).astype(np.uint16)
    decoded = np.asarray(decode(encoded(Image.fromarray(deep))))
    assert np.abs(decoded[..., 0].astype(int) - deep // 256).max() <= 1


def png(width: int, height: int) -> bytes:
    """A PNG that promises this size and holds next to nothing."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0" * 99))]
    chunks = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in [*parts, (b"IEND", b"")]
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


REFUSED: dict[str, tuple[object, str]] = {
    "garbage": (b"no picture at all", "image: 17 bytes that are no JPEG or PNG picture"),
    "empty": (b"", "image: 0 bytes that are no JPEG or PNG picture"),
    "truncated jpeg": (encoded(photograph(90, 90), "JPEG")[:900], "image: 900 bytes that are no JPEG or PNG"),
    "truncated png": (encoded(photograph(90, 90))[:900], "image: 900 bytes that are no JPEG or PNG"),
    "short png": (png(80, 80), "image: "),
    "gif": (encoded(photograph(9, 9), "GIF"), "image: "),
    "bomb": (png(60_000, 60_000), "image: "),
    "too large": (png(10_000, 10_000), f"image: 10000x10000 pixels; allowed: {MOST_PIXELS:,} in all"),
    "too small": (encoded(photograph(1, 9)), "image: 9x1 pixels; allowed: 2 a side and more"),
    "number": (7, "image: is a int; allowed: JPEG or PNG"),
    "text": ("a.jpg", "image: is a str; allowed: JPEG or PNG"),
    "wrong type": (np.zeros((9, 9, 3), np.float32), "pixels: float32 [9, 9, 3]; allowed: uint8 [height, width, 3]"),
    "planes first": (np.zeros((3, 9, 9), np.uint8), "pixels: uint8 [3, 9, 9]; allowed: uint8"),
    "grey array": (np.zeros((9, 9), np.uint8), "pixels: uint8 [9, 9]; allowed: uint8"),
    "small array": (np.zeros((1, 9, 3), np.uint8), "pixels: uint8 [1, 9, 3]; allowed: uint8"),
    "large array": (np.zeros((1, 1, 3), np.uint8).repeat(8000, 0).repeat(8000, 1), "pixels: 8000x8000; allowed: 50,"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_picture_fails_alone_in_one_line(name: str) -> None:
    item, told = REFUSED[name]
    good = photograph(70, 60)
    for way in (Pictures(FEED), CudaPictures(FEED, device="cpu")):
        before, found, after = way.prepare([good, item, good])
        assert isinstance(found, ItemError) and str(found).startswith(told), found
        assert "\n" not in str(found) and len(str(found)) < 200
        np.testing.assert_array_equal(before, after)
        np.testing.assert_array_equal(before, way.prepare([good])[0])


def test_damaged_files_end_in_a_picture_or_a_refusal() -> None:
    """Whatever else a decoder raises would fail the whole batch."""
    dice = random.Random(5)
    clear = Image.fromarray(photograph(60, 60)).convert("RGBA")
    sources = [encoded(photograph(60, 60), "JPEG"), encoded(photograph(60, 60)), encoded(clear)]
    sources += [encoded(photograph(60, 60), "JPEG", progressive=True), encoded(clear.quantize(9), transparency=3)]
    for _ in range(1500):
        data = bytearray(dice.choice(sources))
        for _ in range(dice.choice((1, 3, 30))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        cut = bytes(data[: dice.choice((len(data), dice.randrange(len(data))))])
        [found] = Pictures(FEED).prepare([cut])
        assert isinstance(found, ItemError | np.ndarray)


def test_the_middle_is_a_square_of_seven_eighths() -> None:
    assert middle(160, 80) == (45, 5, 115, 75)
    assert middle(80, 160) == (5, 45, 75, 115)
    for width, height in [(2, 2), (2, 3), (3, 2), (9, 1000), (641, 479)]:
        left, upper, right, lower = middle(width, height)
        assert right - left == lower - upper and 0 <= left < right <= width and 0 <= upper < lower <= height
        assert abs((left + right) - width) <= 1 and abs((upper + lower) - height) <= 1
        assert abs((right - left) - min(width, height) * 0.875) <= 0.5
