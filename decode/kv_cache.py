"""Who holds which KV page. Every page is free, private to one lease, or published in the prefix tree.

A lease covers positions [0, capacity) of one sequence: [0, len(nodes) * page_size) in published pages that others may
read too, the rest in private pages. Publishing moves a private page into the tree; nothing is ever in two places.
Must not know requests, queues or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from decode.page_pool import PagePool
from decode.plan import Copy, Swap
from decode.radix import Node, RadixTree


class Match(NamedTuple):
    """What of a prompt is cached: whole pages, then `tokens` leading tokens of page `partial` (None: nothing)."""

    nodes: list[Node]
    partial: Node | None
    tokens: int

    def cached(self, page_size: int) -> int:
        return len(self.nodes) * page_size + self.tokens


class Lease:
    """The pages one sequence holds. Read `table`; only KVCache changes the rest."""

    __slots__ = ("_table", "nodes", "private", "publishing")

    def __init__(self, nodes: list[Node], private: list[int], publishing: bool) -> None:
        self.nodes = nodes
        self.private = private
        self.publishing = publishing  # False once another sequence published the same tokens first
        self._table: tuple[int, ...] | None = None

    @property
    def table(self) -> tuple[int, ...]:
        """Pages in position order; the same object until the lease changes."""
        if self._table is None:
            self._table = (*(n.page for n in self.nodes), *self.private)
        return self._table


class KVCache:
    """All KV pages of an engine, as ints."""

    def __init__(self, num_pages: int, page_size: int, prefix_cache: bool, host_pages: int = 0) -> None:
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self.pool = PagePool(num_pages)
        self.host = PagePool(host_pages)  # slots for pages of evicted sequences; the sequence knows its own
        self.tree = RadixTree(page_size)

    @property
    def available(self) -> int:
        """Pages that can be had now: free ones and published ones that no lease uses."""
        return self.pool.free + self.tree.unused

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def match(self, tokens: tuple[int, ...], step: int) -> Match:
        """Longest cached prefix of `tokens`, at most all but one: the last token is always computed, to have logits."""
        if not self.prefix_cache:
            return Match([], None, 0)
        limit = len(tokens) - 1
        nodes = self.tree.match(tokens, limit)
        at = len(nodes) * self.page_size
        parent = nodes[-1] if nodes else self.tree.root
        partial, shared = self.tree.nearest(parent, tokens[at : min(at + self.page_size, limit)], step)
        return Match(nodes, partial, shared)

    def fits(self, match: Match, tokens: int, spare: int) -> bool:
        """Whether a lease over `tokens` positions can be given and `spare` pages still be had."""
        pinned = sum(node.users == 0 for node in match.nodes)
        return self.pages_for(tokens) - len(match.nodes) + spare <= self.available - pinned

    def lease(self, match: Match, tokens: int) -> tuple[Lease, tuple[Copy, ...]]:
        """Hold pages for `tokens` positions, the cached ones shared; and the copy to do first for a part of a page.

        The caller has asked `fits`.
        """
        self.tree.use(match.nodes)
        private = [self._page() for _ in range(self.pages_for(tokens) - len(match.nodes))]
        lease = Lease(list(match.nodes), private, self.prefix_cache)
        if match.partial is None:
            return lease, ()
        # The source may have been evicted just now, even into this lease: its content stays until the step writes.
        return lease, (Copy(match.partial.page, private[0], match.tokens),)

    def extend(self, lease: Lease, tokens: int) -> bool:
        """Grow a lease to `tokens` positions. False (and no change) when pages are short."""
        need = self.pages_for(tokens) - len(lease.nodes) - len(lease.private)
        if need > self.available:
            return False
        if need > 0:
            lease.private.extend(self._page() for _ in range(need))
            lease._table = None
        return True

    def publish(self, lease: Lease, tokens: Seq[int], upto: int, step: int) -> None:
        """Share the lease's full pages that lie within [0, upto) of `tokens`; `step` fills the newest of them."""
        size = self.page_size
        while lease.publishing and (len(lease.nodes) + 1) * size <= upto:
            at = len(lease.nodes) * size
            parent = lease.nodes[-1] if lease.nodes else self.tree.root
            node = self.tree.insert(parent, tuple(tokens[at : at + size]), lease.private[0], step)
            if node is None:
                lease.publishing = False  # keeping "a lease that uses a node uses all above it" true
                return
            del lease.private[0]
            lease.nodes.append(node)

    def freed_by(self, lease: Lease, match: Match) -> int:
        """Pages that could be had if the lease ended, for a sequence that `match` was made for: its own, published or
        not. Those that others use, or that the match shares anyway, are none."""
        shared = set(map(id, match.nodes))
        return len(lease.private) + sum(node.users == 1 and id(node) not in shared for node in lease.nodes)

    def swap_out(self, lease: Lease, tokens: int) -> tuple[list[int], tuple[Swap, ...]]:
        """Slots that keep the first `tokens` positions of a lease, and the moves; the caller saw that there are."""
        slots = [self.host.take() for _ in range(self.pages_for(tokens))]
        return slots, tuple(Swap(page, slot, True) for page, slot in zip(lease.table, slots, strict=False))

    def swap_in(self, lease: Lease, slots: list[int]) -> tuple[Swap, ...]:
        """Fill a new lease from its slots, but for pages that it shares already; the slots are free again."""
        for slot in slots:
            self.host.give_back(slot)
        shared = len(lease.nodes)
        return tuple(Swap(page, slot, False) for page, slot in zip(lease.private, slots[shared:], strict=False))

    def release(self, lease: Lease) -> None:
        """End a lease: private pages become free, published ones stay cached for others."""
        for page in lease.private:
            self.pool.give_back(page)
        self.tree.leave(lease.nodes)
        lease.nodes, lease.private, lease._table = [], [], None

    def forget(self) -> None:
        """Drop everything published that no lease uses (after a failed step nobody knows what the pages hold)."""
        while self.tree.unused:
            self.pool.give_back(self.tree.evict())

    def check(self, leases: Seq[Lease]) -> None:
        """Raise AssertionError unless free, private and published pages partition the pool and user counts are true."""
        self.pool.check()
        self.tree.check()
        published = [n.page for n in self.tree]
        private = [p for lease in leases for p in lease.private]
        held = published + private
        assert len(set(held)) == len(held), "a page has two holders"
        assert len(held) + self.pool.free == self.pool.size, "a page is lost"
        uses = {id(n): 0 for n in self.tree}
        for lease in leases:
            for node in lease.nodes:
                uses[id(node)] += 1
        assert all(uses[id(n)] == n.users for n in self.tree), "a user count is wrong"

    def _page(self) -> int:
        if self.pool.free == 0:
            self.pool.give_back(self.tree.evict())
        return self.pool.take()
