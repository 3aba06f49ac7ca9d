"""Pictures prepared on a GPU. The CPU decodes on several threads; each picture that is done is copied from pinned
memory and resized on the GPU while the next ones are still being decoded. Crop and filter: see engines.pictures.

`device="cpu"` computes the same without copies, which is how it is tested where there is no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from engines.errors import ItemError
from engines.pictures import decode, middle
from engines.stamp import Feed


class CudaPictures:
    """Prepares batches on `device`, where they stay."""

    def __init__(self, feed: Feed, device: str = "cuda") -> None:
        self._size, self._device = feed.size, torch.device(device)
        self._mean = torch.tensor(feed.mean, device=self._device).view(3, 1, 1)
        self._scale = 1 / torch.tensor(feed.std, device=self._device).view(3, 1, 1)
        self._threads = ThreadPoolExecutor(os.cpu_count())

    def prepare(self, items: Sequence[object]) -> list[torch.Tensor | ItemError]:
        """float32 [3, size, size] of each item, or why there is none."""
        decoded = [self._threads.submit(self._decode, item) for item in items]
        found: list[torch.Tensor | ItemError] = []
        for waiting in decoded:
            try:
                found.append(self._resize(waiting.result()))
            except ItemError as error:
                found.append(error)
        return found

    def batch(self, items: Sequence[torch.Tensor], rows: int) -> torch.Tensor:
        """float32 [rows, 3, size, size]; rows beyond the items are zeros."""
        stacked = torch.stack(list(items))
        return torch.nn.functional.pad(stacked, (0, 0, 0, 0, 0, 0, 0, rows - len(items)))

    def _decode(self, item: object) -> torch.Tensor:
        """The middle, uint8 [side, side, 3], in pinned memory where there is a GPU to copy to."""
        picture = decode(item, self._size)
        pixels = torch.from_numpy(np.array(picture.crop(middle(*picture.size))))
        return pixels.pin_memory() if self._device.type == "cuda" else pixels

    def _resize(self, pixels: torch.Tensor) -> torch.Tensor:
        there = pixels.to(self._device, non_blocking=True).permute(2, 0, 1).float()
        resized = torch.nn.functional.interpolate(
            there[None], size=(self._size,) * 2, mode="bilinear", antialias=True, align_corners=False
        )[0]
        return (resized.round().clamp(0, 255) - self._mean) * self._scale
