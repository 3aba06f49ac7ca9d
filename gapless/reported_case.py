"""The reported case (see docs/LOG.md): its four configurations, one after another, and its figures as they were told.

Must not know what runs them: a simulator, or the real server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Round:
    """`changes` are those of the engine's limits; `exact_length`: prompts and answers are held to the declared length.

    Else to what the model could take. The last three are of the report, on its A100 with its 7B model.
    """

    name: str
    changes: dict[str, Any]
    exact_length: bool
    served: str  # requests/s
    p99: str
    other: str


ROUNDS = (
    Round(
        "serial",
        {"mode": "serial", "policy": "fcfs", "prefix_cache": False},
        False,
        "< 8",
        "2.8 s",
        "GPU 23 %, memory 64 %",
    ),
    Round(
        "continuous, 32",
        {"max_num_seqs": 32, "policy": "fcfs", "prefix_cache": False},
        False,
        "22",
        "1.4 s",
        "GPU 45 %",
    ),
    Round("64, prefix cache, exact length", {"max_num_seqs": 64, "policy": "fcfs"}, True, "30", "0.9 s", "memory 78 %"),
    Round("tiers, batch below 40 %", {"max_num_seqs": 64}, True, "30", "0.8 s interactive", "background unharmed"),
)
