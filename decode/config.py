"""Limits of an engine, frozen when it starts. Names are those users know from vLLM; memory becomes pages here.

Must not know YAML or protobuf: callers hand over numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["serial", "static", "continuous"]
NS = 1_000_000_000


class ConfigError(ValueError):
    """Limits that contradict each other; one line, names the field, the value and what is allowed."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class TierConfig:
    """One traffic class as the scheduler sees it."""

    name: str
    queue_timeout: int | None = None  # ns a request may wait before it first runs; None = for ever
    # Requests that may wait beyond those for which a slot is free (a burst between two steps takes the free slots
    # first); None = no bound.
    max_queue: int | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything the core needs to know. `num_pages` is the whole KV memory in pages of `page_size` tokens."""

    num_pages: int
    page_size: int = 16
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    max_model_len: int = 4096
    watermark: float = 0.01  # share of pages kept free when a new sequence is admitted
    prefix_cache: bool = True
    mode: Mode = "continuous"
    tiers: tuple[TierConfig, ...] = (TierConfig("default"),)
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None  # prompts with ids beyond it are refused

    def __post_init__(self) -> None:
        for field in ("num_pages", "page_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field}: {getattr(self, field)} is not allowed; an integer >= 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is not allowed; "
                f"at least max_num_seqs ({self.max_num_seqs}), so that every running sequence gets its token"
            )
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark: {self.watermark} is not allowed; a share in [0, 1)")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode: {self.mode!r} is not allowed; one of {', '.join(get_args(Mode))}")
        names = [t.name for t in self.tiers]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"tiers: {names} is not allowed; at least one, each name once")

    @property
    def watermark_pages(self) -> int:
        return int(self.watermark * self.num_pages)


def pages_in(memory: int, page_size: int, kv_bytes_per_token: int) -> int:
    """Number of whole pages that fit `memory` bytes. Raises ConfigError when not even one does."""
    pages = memory // (page_size * kv_bytes_per_token)
    if pages < 1:
        need = page_size * kv_bytes_per_token
        raise ConfigError(f"KV cache memory: {memory} bytes hold no page; at least {need} bytes are needed")
    return pages
