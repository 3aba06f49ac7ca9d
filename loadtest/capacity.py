"""How many requests of a mix a server can sustain, measured by a closed burst of some seconds.

Must not know targets: capacity is a rate of work, not a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.run import Job, LoadtestError, Progress, run
from loadtest.samples import Planned, Sample

USERS = 16  # enough to keep a CPU server's batch full, few enough that the first answers end within the burst


def measure(
    url: str, model: str, mix: Sequence[Planned], duration: int, progress: Callable[[Progress], None] = lambda _: None
) -> float:
    """Requests per second that `model` sustains of `mix`, from a burst of `duration` ns.

    `mix` must hold more requests than the burst can end, all with different prompts. Raises LoadtestError when nothing
    was served.
    """
    samples, _ = run(Job(url, model, mix, duration, drain=0, closed_users=USERS), progress=progress)
    served = served_requests(samples)
    if served == 0:
        errors = list(dict.fromkeys(sample.error for sample in samples)) or ["nothing was sent"]
        raise LoadtestError(f"capacity: no token came back in {duration / 1e9:g} s: {errors[0]}")
    # A mix that was used up before the time counts by the time it took.
    return served / (min(duration, max(sample.end or 0 for sample in samples)) / 1e9)


def served_requests(samples: Sequence[Sample]) -> float:
    """Requests' worth of output: a request that was cut off counts by the share of its tokens that came.

    Counting ended requests only would tell a low rate for long answers; a prompt that is read but not yet answered
    counts nothing, which errs on the side of a lower capacity.
    """
    return sum(min(1.0, sample.output_tokens / sample.asked) for sample in samples)
