"""Leases over pages: behaviours by name, then random lives against a plain dict of what every page holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.kv_cache import KVCache, Lease
from decode.page_pool import PagePool
from decode.plan import Copy

SIZE = 4


def hold(cache: KVCache, tokens: tuple[int, ...], step: int = 0) -> Lease:
    """A lease over all of `tokens`, computed and published as far as pages are full."""
    match = cache.match(tokens, step)
    assert cache.fits(match, len(tokens), 0)
    lease, _ = cache.lease(match, len(tokens))
    cache.publish(lease, tokens, len(tokens), step)
    return lease


def leave(cache: KVCache, tokens: tuple[int, ...], step: int = 0) -> None:
    """Make `tokens` cached without a user."""
    cache.release(hold(cache, tokens, step))


def test_pool_hands_out_every_page_once_and_the_warmest_first() -> None:
    pool = PagePool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2] and pool.free == 0
    with pytest.raises(IndexError):
        pool.take()
    pool.give_back(1)
    pool.give_back(0)
    pool.check()
    assert pool.free == 2 and [pool.take(), pool.take()] == [0, 1]
    pool.give_back(2)
    with pytest.raises(ValueError, match="page 2 is free already"):
        pool.give_back(2)
    pool.check()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda pool: pool._free.append(pool._free[0]), "twice"),
        (lambda pool: pool._free.pop(), "lost"),
        (lambda pool: pool._out.__setitem__(pool._free[0], 1), "marked as out"),
    ],
)
def test_pool_check_notices_a_page_that_is_twice_or_nowhere(damage: Callable[[PagePool], None], words: str) -> None:
    pool = PagePool(4)
    pool.take()
    damage(pool)
    with pytest.raises(AssertionError, match=words):
        pool.check()


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_pages_for_tokens_around_a_page(tokens: int, pages: int) -> None:
    assert KVCache(1, SIZE, True).pages_for(tokens) == pages


@pytest.mark.parametrize(
    ("cached", "asked", "whole", "part"),
    [
        (8, 8, 1, 3),  # all but the last token, which is computed to have logits
        (8, 9, 2, 0),
        (8, 12, 2, 0),
        (8, 5, 1, 0),
        (8, 4, 0, 3),
        (8, 3, 0, 2),
        (8, 1, 0, 0),
        (7, 12, 1, 0),  # an unfinished page is nobody else's
    ],
)
def test_match_covers_whole_pages_and_then_part_of_one(cached: int, asked: int, whole: int, part: int) -> None:
    cache = KVCache(8, SIZE, True)
    leave(cache, tuple(range(cached)))
    match = cache.match(tuple(range(asked)), 1)
    assert (len(match.nodes), match.tokens) == (whole, part) and (match.partial is None) == (part == 0)
    assert match.cached(SIZE) == whole * SIZE + part <= asked - 1


def test_part_of_a_page_comes_by_copy_into_the_first_private_page() -> None:
    cache = KVCache(8, SIZE, True)
    leave(cache, (0, 1, 2, 3, 4, 5, 6, 7))
    match = cache.match((0, 1, 2, 3, 4, 5, 99, 99, 99), 1)
    lease, copies = cache.lease(match, 9)
    assert copies == (Copy(1, lease.private[0], 2),) and lease.table == (0, *lease.private)
    assert len(lease.private) == 2
    cache.check([lease])


def test_what_this_very_step_fills_is_read_but_not_copied() -> None:
    cache = KVCache(8, SIZE, True)
    hold(cache, (0, 1, 2, 3, 4, 5, 6, 7), step=5)
    same = cache.match((0, 1, 2, 3, 4, 5, 9, 9), 5)
    later = cache.match((0, 1, 2, 3, 4, 5, 9, 9), 6)
    assert (len(same.nodes), same.tokens) == (1, 0) and (len(later.nodes), later.tokens) == (1, 2)


def test_fits_counts_pages_in_use_pages_to_spare_and_what_the_match_would_pin() -> None:
    cache = KVCache(4, SIZE, True)
    leave(cache, tuple(range(8)))  # two pages cached, two free
    match = cache.match(tuple(range(16)), 1)
    assert len(match.nodes) == 2 and cache.available == 4
    assert cache.fits(match, 16, 0) and not cache.fits(match, 17, 0) and not cache.fits(match, 16, 1)
    assert cache.fits(match, 12, 1)
    other = cache.match(tuple(range(100, 116)), 1)
    assert cache.fits(other, 16, 0) and not cache.fits(other, 17, 0)  # cached pages can be taken
    held = hold(cache, tuple(range(8)), 1)
    assert cache.available == 2 and not cache.fits(other, 9, 0) and cache.fits(other, 8, 0)
    cache.check([held])


def test_extend_takes_what_it_needs_and_changes_nothing_when_it_cannot() -> None:
    cache = KVCache(4, SIZE, True)
    leave(cache, (7, 7, 7, 7))
    lease = hold(cache, (1, 2, 3))
    before = lease.table
    assert cache.extend(lease, 4) and lease.table is before  # still within its page
    assert cache.extend(lease, 5) and len(lease.table) == 2 and lease.table[:1] == before
    assert not cache.extend(lease, 17) and len(lease.table) == 2 and cache.available == 2
    assert cache.extend(lease, 16) and len(lease.table) == 4 and cache.available == 0
    assert cache.tree.size == 0  # the cached page gave way
    cache.check([lease])


def test_the_least_recently_used_prefix_gives_way_first() -> None:
    cache = KVCache(3, SIZE, True)
    for token in (1, 2, 3):
        leave(cache, (token,) * 4)
    cache.release(hold(cache, (1,) * 4 + (0,), step=1))  # 1 is used again; takes page of 2 for its tail, which is freed
    found = {t: len(cache.match((t,) * 5, 2).nodes) for t in (1, 2, 3)}
    assert found == {1: 1, 2: 0, 3: 1}


def test_the_second_to_publish_the_same_tokens_keeps_its_pages_to_itself() -> None:
    """Nodes above would otherwise have a user that skips them."""
    cache = KVCache(8, SIZE, True)
    tokens = tuple(range(12))
    first, _ = cache.lease(cache.match(tokens, 0), 12)
    second, _ = cache.lease(cache.match(tokens, 0), 12)
    cache.publish(first, tokens, 8, 0)
    cache.publish(second, tokens, 12, 0)
    assert (len(first.nodes), len(first.private)) == (2, 1) and (len(second.nodes), len(second.private)) == (0, 3)
    cache.check([first, second])
    cache.release(first)
    cache.publish(second, tokens, 12, 1)
    assert not second.nodes
    cache.release(second)
    cache.check([])
    assert cache.available == 8 and cache.tree.size == 2


def test_publishing_ends_with_the_last_full_page_and_keeps_the_table() -> None:
    cache = KVCache(8, SIZE, True)
    tokens = tuple(range(9))
    lease, _ = cache.lease(cache.match(tokens, 0), 9)
    table = lease.table
    for upto, nodes in ((3, 0), (4, 1), (7, 1), (8, 2), (9, 2)):
        cache.publish(lease, tokens, upto, 0)
        assert len(lease.nodes) == nodes and (*(n.page for n in lease.nodes), *lease.private) == table == lease.table
        cache.check([lease])


def test_without_prefix_cache_nothing_is_matched_or_published() -> None:
    cache = KVCache(8, SIZE, False)
    leave(cache, tuple(range(8)))
    assert cache.tree.size == 0 and cache.match(tuple(range(8)), 1).cached(SIZE) == 0 and cache.pool.free == 8


def test_forget_keeps_what_a_lease_uses() -> None:
    cache = KVCache(8, SIZE, True)
    leave(cache, tuple(range(8)))
    lease = hold(cache, (0, 1, 2, 3, 9), 1)
    cache.forget()
    cache.check([lease])
    assert cache.tree.size == 1 and cache.tree.unused == 0 and cache.available == 6
    cache.release(lease)
    assert lease.table == ()  # it holds nothing any more, and says so


@dataclass
class Holder:
    tokens: tuple[int, ...]
    lease: Lease
    computed: int


Words = st.lists(st.integers(0, 1), min_size=1, max_size=11).map(tuple)
Lives = st.lists(
    st.one_of(
        st.tuples(st.just("start"), Words, st.integers(0, 2)),
        st.tuples(st.just("grow"), Words, st.integers(0, 9)),
        st.tuples(st.just("end"), st.just(()), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.just(()), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(Lives, st.integers(1, 14), st.integers(1, 4))
def test_any_life_of_leases_keeps_every_promise(
    life: list[tuple[str, tuple[int, ...], int]], pages: int, size: int
) -> None:
    """Two tokens only, so that prefixes meet. `content` is what a GPU would hold; `published` what was promised."""
    cache, content, held = KVCache(pages, size, True), {}, []
    for step, (what, tokens, number) in enumerate(life):
        in_use = {p for h in held for p in h.lease.table}
        assert cache.available == pages - len(in_use)
        if what == "start":
            match = cache.match(tokens, step)
            longest = max((n for n in range(len(tokens)) if _is_cached(cache, content, tokens[:n])), default=0)
            assert match.cached(size) == longest
            assert len(match.nodes) == longest // size
            pinned = in_use | {n.page for n in match.nodes}
            private = -(-len(tokens) // size) - len(match.nodes)
            assert cache.fits(match, len(tokens), number) == (private + number <= pages - len(pinned))
            if cache.fits(match, len(tokens), number):
                lease, copies = cache.lease(match, len(tokens))
                for copy in copies:
                    for offset in range(copy.tokens):
                        content[copy.dst, offset] = content[copy.src, offset]
                held.append(Holder(tokens, lease, match.cached(size)))
                _compute(cache, content, held[-1], step)
        elif what == "grow" and held:
            holder = held[number % len(held)]
            wanted = (*holder.tokens, *tokens)
            need = -(-len(wanted) // size) - len(holder.lease.table)
            assert cache.extend(holder.lease, len(wanted)) == (need <= pages - len(in_use))
            if len(holder.lease.table) * size >= len(wanted):
                holder.tokens = wanted
                _compute(cache, content, holder, step)
        elif what == "end" and held:
            cache.release(held.pop(number % len(held)).lease)
        elif what == "forget":
            cache.forget()
            assert cache.tree.unused == 0
        cache.check([h.lease for h in held])
        for h in held:
            assert [content[h.lease.table[p // size], p % size] for p in range(len(h.tokens))] == list(h.tokens)
    for h in held:
        cache.release(h.lease)
    cache.check([])
    assert cache.available == pages


def _compute(cache: KVCache, content: dict[tuple[int, int], int], holder: Holder, step: int) -> None:
    size = cache.page_size
    for p in range(holder.computed, len(holder.tokens)):
        content[holder.lease.table[p // size], p % size] = holder.tokens[p]
    holder.computed = len(holder.tokens)
    cache.publish(holder.lease, holder.tokens, holder.computed, step)


def _is_cached(cache: KVCache, content: dict[tuple[int, int], int], tokens: tuple[int, ...]) -> bool:
    """Brute force: some published path spells exactly these leading tokens."""
    size = cache.page_size
    for node in cache.tree:
        path = [node]
        while path[0].parent is not cache.tree.root:
            assert path[0].parent is not None
            path.insert(0, path[0].parent)
        spelt = [content[n.page, offset] for n in path for offset in range(size)]
        if tuple(spelt[: len(tokens)]) == tokens and len(tokens) > (len(path) - 1) * size:
            return True
    return not tokens
