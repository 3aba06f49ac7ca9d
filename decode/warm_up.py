"""Steps before the first request: they compile what is compiled late, touch memory, and tell what a step costs here.

Plans of made-up sequences on pages that nobody holds. Must not know engines or what executes the plans.
"""

from __future__ import annotations

from collections.abc import Iterator

from decode.config import EngineConfig
from decode.executors.base import Executor
from decode.plan import Chunk, Draw, StepPlan
from decode.step_time import Executed, Work
from decode.types import SamplingParams

CONTEXT = 256  # positions that a decoding sequence attends to, at most; a chunk behind a context starts at twice that
ROUNDS = 3  # of all plans; the first, in which code is compiled, is not told
GREEDY = SamplingParams(max_tokens=1, temperature=0, seed=0)


def warm_up(executor: Executor, config: EngineConfig) -> Executed:
    """Execute the plans; what each computed, and its ns."""
    told: list[tuple[Work, int]] = []
    for at in range(ROUNDS):
        for plan, work in plans(config):
            elapsed = executor.execute(plan).elapsed
            if at:
                told.append((work, elapsed))
    return told


def plans(config: EngineConfig) -> Iterator[tuple[StepPlan, Work]]:
    """Few and many sequences decoding, short and long chunks at the beginning of a prompt and behind a context."""
    room = min(config.max_model_len - 1, config.num_pages * config.page_size)
    seqs = min(config.max_num_seqs, config.num_pages)  # each needs a page
    for count in sorted({1, max(1, seqs // 4), seqs}):
        context = max(1, min(CONTEXT, config.max_model_len - 1, _pages(config, count) * config.page_size))
        for seen in sorted({max(1, context // 4), context}):
            chunks = tuple(_chunk(config, seq, count, seen - 1, 1) for seq in range(count))
            yield StepPlan(0, chunks), Work(0, count, count * seen, 0)
    most = min(config.max_num_batched_tokens, room)
    for size in sorted({max(2, most // 4), max(2, most // 2), most} if most > 1 else ()):
        for start in sorted({0, max(0, min(room - size, 2 * CONTEXT))}):
            chunk = _chunk(config, 0, 1, start, size)
            yield StepPlan(0, (chunk,)), Work(size, 0, 0, size * (2 * start + size) // 2)


def _pages(config: EngineConfig, count: int) -> int:
    """For each of so many sequences; at least one, which they share when there are fewer."""
    return max(1, config.num_pages // count)


def _chunk(config: EngineConfig, seq: int, count: int, start: int, size: int) -> Chunk:
    need = -(-(start + size) // config.page_size)
    first = seq * _pages(config, count)
    pages = tuple((first + at) % config.num_pages for at in range(need))
    return Chunk(seq, (0,) * size, start, pages, Draw(GREEDY, start + size))
