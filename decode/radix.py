"""The prefix tree over published KV pages: one node per full page, keyed by that page's tokens.

Owns which token sequence lies in which page, how many leases use a page, and which unused leaf goes first (least
recently used, by a counter, never by a clock). Must not know sequences, free pages or when to evict.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

Key = tuple[int, ...]


class Node:
    """A full page of tokens below its parent's. `users` leases read it; a lease that uses a node uses all above it.

    `step` is the step that fills the page: within that very step it may be attended to, but not yet copied.
    """

    __slots__ = ("children", "key", "last_used", "order", "page", "parent", "step", "users")

    def __init__(self, key: Key, page: int, parent: Node | None, step: int) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.step = step
        self.users = 0
        self.last_used = 0
        self.children: dict[Key, Node] = {}
        self.order: list[Key] = []  # the children's keys, sorted: the longest common prefix is a neighbour


class RadixTree:
    """All published pages. `unused` counts nodes without users: they can all be evicted, leaf by leaf."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node((), -1, None, -1)
        self.size = 0
        self.unused = 0
        self._tick = 0
        self._leaves: list[tuple[int, int, Node]] = []  # heap of (last_used, page, node); stale entries are skipped

    def match(self, tokens: Key, limit: int) -> list[Node]:
        """Nodes of the longest published path that covers tokens[:n], n a multiple of the page size, n <= limit."""
        size, node, path = self.page_size, self.root, []
        for at in range(0, limit - size + 1, size):
            child = node.children.get(tokens[at : at + size])
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def nearest(self, parent: Node, tokens: Key, step: int) -> tuple[Node | None, int]:
        """The child of `parent` that shares most leading tokens with `tokens`, and how many; (None, 0) when none does.

        A child filled by `step` itself does not count: its content is not there yet.
        """
        best, shared = None, 0
        at = bisect_left(parent.order, tokens)
        for key in parent.order[max(0, at - 1) : at + 1]:
            child = parent.children[key]
            common = _common(key, tokens)
            if common > shared and child.step < step:
                best, shared = child, common
        return best, shared

    def insert(self, parent: Node, key: Key, page: int, step: int) -> Node | None:
        """Publish `page` under `parent` with one user; None (and no change) when that path is published already."""
        if key in parent.children:
            return None
        node = Node(key, page, parent, step)
        node.users = 1
        parent.children[key] = node
        insort(parent.order, key)
        self.size += 1
        return node

    def use(self, path: list[Node]) -> None:
        """One more lease reads all nodes of `path`, which starts below the root."""
        for node in path:
            if node.users == 0:
                self.unused -= 1
            node.users += 1

    def leave(self, path: list[Node]) -> None:
        """One lease less reads the nodes of `path`."""
        self._tick += 1
        for node in path:
            node.users -= 1
            node.last_used = self._tick
            if node.users == 0:
                self.unused += 1
        if path and path[-1].users == 0 and not path[-1].children:
            self._offer(path[-1])

    def evict(self) -> int:
        """Remove the least recently used leaf without users; return its page. Raises IndexError when none is left."""
        while True:
            used, _, node = heappop(self._leaves)
            parent = node.parent
            if parent is None or node.users or node.children or node.last_used != used:
                continue
            del parent.children[node.key]
            del parent.order[bisect_left(parent.order, node.key)]
            node.parent = None
            self.size -= 1
            self.unused -= 1
            if parent.parent is not None and parent.users == 0 and not parent.children:
                self._offer(parent)
            return node.page

    def __iter__(self) -> Iterator[Node]:
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            yield node

    def check(self) -> None:
        """Raise AssertionError unless counts, order and the rule "users use all above" hold."""
        nodes = list(self)
        assert len(nodes) == self.size, "size is wrong"
        assert sum(n.users == 0 for n in nodes) == self.unused, "unused is wrong"
        offered = {id(n) for used, _, n in self._leaves if n.last_used == used}
        for node in [self.root, *nodes]:
            assert node.order == sorted(node.children), "children out of order"
            for key, child in node.children.items():
                assert child.parent is node and child.key == key and len(key) == self.page_size
                assert node is self.root or child.users <= node.users, "a user skips a node above"
            if node is not self.root and not node.users and not node.children:
                assert id(node) in offered, "a leaf can never be evicted"

    def _offer(self, node: Node) -> None:
        if len(self._leaves) > 2 * self.size + 64:
            self._leaves = [e for e in self._leaves if e[2].parent is not None and e[2].last_used == e[0]]
            heapify(self._leaves)
        heappush(self._leaves, (node.last_used, node.page, node))


def _common(a: Key, b: Key) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
