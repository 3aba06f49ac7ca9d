"""What Triton's dynamic batcher is told for one model. Names and defaults are those of ModelDynamicBatching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """One queue. `timeout` in ns a request may wait, None without end; `max_queue` requests, None without bound."""

    timeout: int | None = None
    action: Literal["reject", "delay"] = "reject"  # what a timeout does
    max_queue: int | None = None


@dataclass(frozen=True, slots=True)
class Batching:
    """`delay` in ns that a batch below the largest preferred size waits for more. `preferred` () is [max_batch_size].

    `levels`: a queue for each priority level, level 1 first; () means no priorities and one queue, `default_policy`.
    """

    max_batch_size: int
    instances: int = 1
    delay: int = 0
    preferred: tuple[int, ...] = ()
    levels: tuple[QueuePolicy, ...] = ()
    default_level: int = 1  # of requests that name none, where there are levels
    default_policy: QueuePolicy = QueuePolicy()
