"""The free list of KV pages. A page is an int; who holds a page that is not free is written in `kv_cache`.

Must not know tokens, sequences or tensors.
"""

from __future__ import annotations


class PagePool:
    """Pages 0 … size - 1; every page is either free or out with exactly one holder."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))  # a stack: the page freed last is the warmest in cache
        self._out = bytearray(size)

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Hand out one page. Raises IndexError when none is free."""
        page = self._free.pop()
        self._out[page] = 1
        return page

    def give_back(self, page: int) -> None:
        """Return a page that was taken. Raises ValueError on a page that is not out."""
        if not self._out[page]:
            raise ValueError(f"page {page} is free already")
        self._out[page] = 0
        self._free.append(page)

    def check(self) -> None:
        """Raise AssertionError unless free and handed-out pages partition the pool."""
        assert len(self._free) == len(set(self._free)), "a page is twice in the free list"
        assert not any(self._out[p] for p in self._free), "a free page is marked as out"
        assert sum(self._out) + len(self._free) == self.size, "a page is lost"
