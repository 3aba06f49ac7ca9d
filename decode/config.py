"""Limits of an engine, frozen when it starts. Names are those users know from vLLM; memory becomes pages here.

Must not know YAML or protobuf: callers hand over numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["serial", "static", "continuous"]
Policy = Literal["weighted", "priority", "fcfs"]
NS = 1_000_000_000
MOST_PAGES = 2**24  # their free list alone takes half a gigabyte
MOST_SEQS = 2**14


class ConfigError(ValueError):
    """Limits that contradict each other; one line, names the field, the value and what is allowed."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class TierConfig:
    """One traffic class as the scheduler sees it."""

    name: str
    queue_timeout: int | None = None  # ns a request may wait before it first runs; None = for ever
    weight: float = 1.0  # share of the service while several tiers have requests waiting
    # Targets in ns. `ttft` orders prompts, `itl` bounds the predicted time of steps in which the tier decodes; who can
    # no longer keep both `ttft` and `e2e` lets others of its tier pass.
    ttft: int | None = None
    itl: int | None = None
    e2e: int | None = None
    idle_below: float | None = None  # starts only while the load by other tiers is below this share; None = any time
    max_long: int | None = None  # sequences above `long_tokens` (prompt + max_tokens) that run at once; None = all
    long_tokens: int = 2048
    # Requests that may wait beyond those for which a slot is free (a burst between two steps takes the free slots
    # first); None = no bound.
    max_queue: int | None = None

    def __post_init__(self) -> None:
        where = f"tiers.{self.name}"
        if not 0 < self.weight < float("inf"):
            raise ConfigError(f"{where}.weight: {self.weight} is not allowed; a number > 0")
        if self.idle_below is not None and not 0 < self.idle_below <= 1:
            raise ConfigError(f"{where}.idle_below: {self.idle_below} is not allowed; a share in (0, 1]")
        for field in ("queue_timeout", "ttft", "itl", "e2e", "max_long", "long_tokens"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{where}.{field}: {value} is not allowed; an integer >= 1")


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
    # Who goes first among tiers. weighted: by weights, see accounts.py. priority: in the order of `tiers`, absolutely.
    # fcfs: by arrival alone. The last two are there to be compared with.
    policy: Policy = "weighted"
    prefill_cost: float = 1.0  # service that one computed prompt token counts for
    decode_cost: float = 1.0  # and one output token
    min_prefill_tokens: int = 32  # prompts go on by this much a step, however tight the ITL targets
    max_preemptions: int = 3  # of one request
    # Slots for pages of evicted sequences in host memory, and the predicted time of moving one page there or back.
    host_pages: int = 0
    swap_page_time: int = 50_000  # ns
    early_refusal: bool = False  # refuse at once when the predicted wait is over the tier's queue_timeout
    tiers: tuple[TierConfig, ...] = (TierConfig("default"),)  # the first goes before the last
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None  # prompts with ids beyond it are refused

    def __post_init__(self) -> None:
        for field in ("num_pages", "page_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field}: {getattr(self, field)} is not allowed; an integer >= 1")
        if self.max_num_seqs > MOST_SEQS:
            raise ConfigError(f"max_num_seqs: {self.max_num_seqs} is not allowed; at most {MOST_SEQS}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is not allowed; "
                f"at least max_num_seqs ({self.max_num_seqs}), so that every running sequence gets its token"
            )
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark: {self.watermark} is not allowed; a share in [0, 1)")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode: {self.mode!r} is not allowed; one of {', '.join(get_args(Mode))}")
        if self.policy not in get_args(Policy):
            raise ConfigError(f"policy: {self.policy!r} is not allowed; one of {', '.join(get_args(Policy))}")
        for field in ("prefill_cost", "decode_cost"):
            if not 0 < getattr(self, field) < float("inf"):
                raise ConfigError(f"{field}: {getattr(self, field)} is not allowed; a number > 0")
        for field, least in (
            ("max_preemptions", 0),
            ("host_pages", 0),
            ("min_prefill_tokens", 1),
            ("swap_page_time", 1),
        ):
            if getattr(self, field) < least:
                raise ConfigError(f"{field}: {getattr(self, field)} is not allowed; an integer >= {least}")
        names = [t.name for t in self.tiers]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"tiers: {names} is not allowed; at least one, each name once")

    @property
    def watermark_pages(self) -> int:
        return int(self.watermark * self.num_pages)


def pages_in(memory: int, page_size: int, kv_bytes_per_token: int) -> int:
    """Number of whole pages that fit `memory` bytes. Raises ConfigError when not even one does, or too many."""
    pages = memory // (page_size * kv_bytes_per_token)
    if pages < 1:
        need = page_size * kv_bytes_per_token
        raise ConfigError(f"KV cache memory: {memory} bytes hold no page; at least {need} bytes are needed")
    if pages > MOST_PAGES:
        raise ConfigError(
            f"KV cache memory: {memory} bytes hold {pages} pages; at most {MOST_PAGES} are allowed: take less "
            "memory or a larger page_size"
        )
    return pages
