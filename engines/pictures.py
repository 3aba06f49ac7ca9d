"""Pictures to normalized arrays: the middle square, resized with antialiasing, channels scaled.

Decoding is the CPU's; what follows happens where the engine runs: with Pillow on the CPU, on a GPU with torch, each
picture copied from pinned memory as soon as it is decoded, while the next one still is. Must not know models.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from engines.errors import ItemError
from engines.stamp import Feed

MIDDLE = 0.875  # of the shorter side: the crop that ImageNet models are evaluated with
MOST_PIXELS = 50_000_000
SMALLEST = 2  # pixels a side


def decode(item: object, size: int = 0) -> Image.Image:
    """One picture, RGB: JPEG or PNG bytes, or uint8 [height, width, 3]. Raises ItemError.

    A JPEG may be decoded at a half, a quarter or an eighth where the middle is still at least `size` pixels.
    """
    if isinstance(item, np.ndarray):
        return Image.fromarray(_checked(item))
    if not isinstance(item, bytes):
        raise ItemError(f"image: is a {type(item).__name__}; allowed: JPEG or PNG")
    try:
        with Image.open(io.BytesIO(item), formats=("JPEG", "PNG")) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ItemError(f"image: {opened.width}x{opened.height} pixels; allowed: {MOST_PIXELS:,} in all")
            if min(opened.size) < SMALLEST:
                raise ItemError(f"image: {opened.width}x{opened.height} pixels; allowed: {SMALLEST} a side and more")
            if size:
                opened.draft("RGB", (round(size / MIDDLE) + 1,) * 2)
            if opened.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255
                return Image.fromarray((np.asarray(opened) >> 8).astype(np.uint8)).convert("RGB")
            return opened.convert("RGB")
    except ItemError:
        raise
    except UnidentifiedImageError:  # its message is an address in memory
        raise ItemError(f"image: {len(item)} bytes that are no JPEG or PNG picture") from None
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        told = " ".join(str(error).split())[:80]
        raise ItemError(f"image: {len(item)} bytes that are no JPEG or PNG picture ({told})") from None


def _checked(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or min(pixels.shape[:2]) < SMALLEST:
        raise ItemError(f"pixels: {pixels.dtype} {list(pixels.shape)}; allowed: uint8 [height, width, 3]")
    if pixels.shape[0] * pixels.shape[1] > MOST_PIXELS:
        raise ItemError(f"pixels: {pixels.shape[1]}x{pixels.shape[0]}; allowed: {MOST_PIXELS:,} pixels in all")
    return np.ascontiguousarray(pixels)


def middle(width: int, height: int) -> tuple[int, int, int, int]:
    """The box (left, upper, right, lower) of the square in the middle, MIDDLE of the shorter side, in whole pixels."""
    side = max(1, round(min(width, height) * MIDDLE))
    left, upper = (width - side) // 2, (height - side) // 2
    return left, upper, left + side, upper + side


class Pictures:
    """Prepares batches on the CPU."""

    def __init__(self, feed: Feed) -> None:
        self._size = feed.size
        self._mean = np.array(feed.mean, np.float32)
        self._scale = 1 / np.array(feed.std, np.float32)
        self._threads = ThreadPoolExecutor(os.cpu_count())

    def prepare(self, items: Sequence[object]) -> list[NDArray[np.float32] | ItemError]:
        """float32 [3, size, size] of each item, or why there is none."""
        return list(self._threads.map(self._prepare, items))

    def batch(self, items: Sequence[NDArray[np.float32]], rows: int) -> NDArray[np.float32]:
        """float32 [rows, 3, size, size]; rows beyond the items are zeros."""
        made = np.zeros((rows, 3, self._size, self._size), np.float32)
        made[: len(items)] = items
        return made

    def _prepare(self, item: object) -> NDArray[np.float32] | ItemError:
        try:
            picture = decode(item, self._size)
            # Cropped first: the filter must not reach beyond the crop, as it does not on a GPU.
            square = picture.crop(middle(*picture.size)).resize((self._size,) * 2, Image.Resampling.BILINEAR)
        except ItemError as error:
            return error
        scaled = (np.asarray(square, np.float32) - self._mean) * self._scale
        return np.ascontiguousarray(scaled.transpose(2, 0, 1))
