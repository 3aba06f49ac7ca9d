"""Pictures prepared on a GPU. The CPU decodes on several threads; each picture that is done is copied from pinned
memory and resized on the GPU while the next ones are still being decoded. Crop and filter: see engines.pictures.

`device="cpu"` computes the same without copies, which is how it is tested where there is no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.errors import ItemError
from engines.pictures import decode, middle
from engines.stamp import Feed


class CudaPictures:
    """Prepares batches on `device`; the result is brought back once for the whole batch."""

    def __init__(self, feed: Feed, device: str = "cuda") -> None:
        self._size, self._device = feed.size, torch.device(device)
        self._mean = torch.tensor(feed.mean, device=self._device).view(3, 1, 1)
        self._scale = 1 / torch.tensor(feed.std, device=self._device).view(3, 1, 1)
        self._threads = ThreadPoolExecutor(os.cpu_count())

    def prepare(self, items: Sequence[object]) -> list[NDArray[np.float32] | ItemError]:
        """float32 [3, size, size] of each item, or why there is none."""
        decoded = [self._threads.submit(self._decode, item) for item in items]
        found: list[Any] = []
        for waiting in decoded:
            try:
                found.append(self._resize(waiting.result()))
            except ItemError as error:
                found.append(error)
        good = [tensor for tensor in found if not isinstance(tensor, ItemError)]
        arrays = iter(torch.stack(good).cpu().numpy() if good else ())
        return [tensor if isinstance(tensor, ItemError) else next(arrays) for tensor in found]

    def _decode(self, item: object) -> torch.Tensor:
        """uint8 [height, width, 3] in pinned memory where there is a GPU to copy to."""
        pixels = torch.from_numpy(np.array(decode(item, self._size)))
        return pixels.pin_memory() if self._device.type == "cuda" else pixels

    def _resize(self, pixels: torch.Tensor) -> torch.Tensor:
        height, width = pixels.shape[:2]
        left, upper, right, lower = middle(width, height)
        there = pixels[upper:lower, left:right].to(self._device, non_blocking=True).permute(2, 0, 1).float()
        resized = torch.nn.functional.interpolate(
            there[None], size=(self._size,) * 2, mode="bilinear", antialias=True, align_corners=False
        )[0]
        return (resized.round().clamp(0, 255) - self._mean) * self._scale
