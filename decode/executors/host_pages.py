"""Pages of evicted sequences in host memory, and the way there and back. Must not know whose they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from decode.plan import Copy, Swap


class HostPages:
    """`count` slots beside `pages`, whose axis `axis` runs over pages; pinned when `pages` are on a GPU."""

    def __init__(self, pages: Tensor, axis: int, count: int) -> None:
        shape = [count, *(size for at, size in enumerate(pages.shape) if at != axis)]
        self._pages = pages.movedim(axis, 0)
        self._slots = torch.empty(shape, dtype=pages.dtype, pin_memory=pages.is_cuda and count > 0)

    def in_order(self, copies: tuple[Copy | Swap, ...], copy: Callable[[Copy], None]) -> None:
        """Do the copies of a plan: swaps here, those between pages by `copy`."""
        for one in copies:
            if isinstance(one, Swap):
                self._move(one)
            else:
                copy(one)

    def _move(self, swap: Swap) -> None:
        """One page out to its slot, or in from it; all layers, K and V."""
        page, slot = self._pages[swap.page], self._slots[swap.slot]
        if swap.out:
            slot.copy_(page)
        else:
            page.copy_(slot)
