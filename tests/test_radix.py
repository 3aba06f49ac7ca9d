"""The prefix tree against brute force over a plain list of published token paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decode.radix import Node, RadixTree

SIZE = 3
Tokens = st.lists(st.integers(0, 1), max_size=12).map(tuple)  # two values only: many shared prefixes


def publish(tree: RadixTree, tokens: tuple[int, ...], page: int, step: int = 0) -> tuple[list[Node], int]:
    """Publish all full pages of `tokens` and leave them unused; the path and the next free page number."""
    node, path = tree.root, []
    for at in range(0, len(tokens) - SIZE + 1, SIZE):
        key = tokens[at : at + SIZE]
        child = tree.insert(node, key, page, step)
        if child is None:
            child = node.children[key]
            tree.use([child])
        else:
            page += 1
        path.append(child)
        node = child
        tree.check()
    tree.leave(path)
    tree.check()
    return path, page


@given(st.lists(Tokens, max_size=12), Tokens)
def test_match_is_the_longest_published_prefix_in_whole_pages(
    published: list[tuple[int, ...]], asked: tuple[int, ...]
) -> None:
    tree, page = RadixTree(SIZE), 0
    for tokens in published:
        _, page = publish(tree, tokens, page)
    paths = {t[:n] for t in published for n in range(SIZE, len(t) + 1, SIZE)}
    expected = max((n for n in range(0, len(asked) + 1, SIZE) if n == 0 or asked[:n] in paths), default=0)
    found = tree.match(asked, len(asked))
    assert sum((n.key for n in found), ()) == asked[:expected]
    assert tree.size == len(paths) == tree.unused


@given(st.lists(Tokens, max_size=12), st.lists(st.integers(0, 1), min_size=1, max_size=SIZE).map(tuple))
def test_nearest_child_shares_as_much_as_any(published: list[tuple[int, ...]], asked: tuple[int, ...]) -> None:
    tree, page = RadixTree(SIZE), 0
    for tokens in published:
        _, page = publish(tree, tokens, page)

    def common(key: tuple[int, ...]) -> int:
        return next((i for i, (a, b) in enumerate(zip(key, asked, strict=False)) if a != b), len(asked))

    expected = max((common(t[:SIZE]) for t in published if len(t) >= SIZE), default=0)
    node, shared = tree.nearest(tree.root, asked, step=1)
    assert shared == expected
    assert (node is None) == (expected == 0)
    assert tree.nearest(tree.root, asked, step=0) == (None, 0)  # filled by this very step: nothing to copy yet


def test_least_recently_used_leaf_goes_first_and_parents_after_their_children() -> None:
    tree = RadixTree(SIZE)
    a, _ = publish(tree, (1,) * 6, 10)  # pages 10, 11
    publish(tree, (2,) * 3, 20)
    publish(tree, (3,) * 3, 30)
    tree.use(a)
    tree.leave(a)  # used again: now the most recent
    assert [tree.evict() for _ in range(4)] == [20, 30, 11, 10]
    assert tree.size == 0


@given(st.lists(Tokens, min_size=1, max_size=12), st.data())
def test_used_paths_are_never_evicted_and_all_else_can_be(
    published: list[tuple[int, ...]], data: st.DataObject
) -> None:
    tree, page, paths = RadixTree(SIZE), 0, []
    for tokens in published:
        path, page = publish(tree, tokens, page)
        paths.append(path)
    kept = data.draw(st.lists(st.integers(0, len(paths) - 1), max_size=4))
    for i in kept:
        tree.use(paths[i])
    used = {n.page for i in kept for n in paths[i]}
    everything = {n.page for n in tree}
    evicted = set()
    while tree.unused:
        evicted.add(tree.evict())
        tree.check()
    assert evicted == everything - used


def test_the_heap_of_leaves_stays_small_however_often_they_are_used() -> None:
    tree = RadixTree(SIZE)
    paths = [publish(tree, (i,) * 3, i)[0] for i in range(5)]
    for i in range(10_000):
        tree.use(paths[i % 5])
        tree.leave(paths[i % 5])
    assert len(tree._leaves) <= 2 * 5 + 64 + 1
    tree.check()
    assert [tree.evict() for _ in range(5)] == [0, 1, 2, 3, 4]
