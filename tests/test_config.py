"""Limits of an engine: what is taken at the edge, and the one line that refuses what is not."""

from __future__ import annotations

from typing import Any

import pytest

from decode.config import ConfigError, EngineConfig, TierConfig, pages_in


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"num_pages": 10, **changes})


@pytest.mark.parametrize(
    "edge",
    [
        {"num_pages": 1},
        {"page_size": 1},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"max_num_seqs": 32, "max_num_batched_tokens": 32},
        {"max_model_len": 1},
        {"watermark": 0.0},
        {"watermark": 0.999},
        {"mode": "serial"},
        {"mode": "static"},
        {"tiers": (TierConfig("a"), TierConfig("b"))},
    ],
    ids=str,
)
def test_what_is_taken(edge: dict[str, Any]) -> None:
    for name, value in edge.items():
        assert getattr(config(**edge), name) == value


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        *(
            ({name: 0}, f"{name}: 0 is not allowed; an integer >= 1")
            for name in ("num_pages", "page_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
        ),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 7},
            "max_num_batched_tokens: 7 is not allowed; at least max_num_seqs (8), "
            "so that every running sequence gets its token",
        ),
        ({"max_num_seqs": 16385}, "max_num_seqs: 16385 is not allowed; at most 16384"),
        ({"watermark": -0.01}, "watermark: -0.01 is not allowed; a share in [0, 1)"),
        ({"watermark": 1}, "watermark: 1 is not allowed; a share in [0, 1)"),
        ({"mode": "fast"}, "mode: 'fast' is not allowed; one of serial, static, continuous"),
        ({"tiers": ()}, "tiers: [] is not allowed; at least one, each name once"),
        (
            {"tiers": (TierConfig("a"), TierConfig("a"))},
            "tiers: ['a', 'a'] is not allowed; at least one, each name once",
        ),
    ],
)
def test_what_is_refused_and_what_the_message_says(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**bad)
    assert str(caught.value) == message and caught.value.exit_status == 2


@pytest.mark.parametrize(("share", "pages", "kept"), [(0.0, 100, 0), (0.01, 99, 0), (0.01, 100, 1), (0.5, 7, 3)])
def test_the_watermark_is_a_share_of_all_pages_rounded_down(share: float, pages: int, kept: int) -> None:
    assert config(num_pages=pages, watermark=share).watermark_pages == kept


def test_memory_becomes_whole_pages() -> None:
    assert [pages_in(m, 16, 100) for m in (1600, 3199, 3200)] == [1, 1, 2]
    with pytest.raises(ConfigError) as caught:
        pages_in(1599, 16, 100)
    assert str(caught.value) == "KV cache memory: 1599 bytes hold no page; at least 1600 bytes are needed"
    assert pages_in(2**24, 1, 1) == 2**24
    with pytest.raises(ConfigError, match="hold 16777217 pages; at most 16777216 are allowed"):
        pages_in(2**24 + 1, 1, 1)
