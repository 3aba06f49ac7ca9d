"""How many requests of a mix a server can sustain, measured by a closed burst of some seconds.

Must not know targets: capacity is a rate of work, not a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.run import BURST_ENDED, Job, LoadtestError, Progress, run
from loadtest.samples import Planned, Sample

USERS = 16  # enough to keep a CPU server's batch full, few enough that the first answers end within the burst


def measure(
    url: str, mix: Sequence[Planned], duration: int, progress: Callable[[Progress], None] = lambda _: None
) -> float:
    """Requests per second that the server sustains of `mix`, all its models together, from a burst of `duration` ns.

    `mix` must hold more requests than the burst can end, all with different prompts; users take them in turn, so that
    models and tiers are asked in the proportions of the mix. Raises LoadtestError when a model served nothing.
    """
    samples, _ = run(Job(url, mix, duration, drain=0, closed_users=USERS), progress=progress)
    _check_served(samples, duration)
    # A mix that was used up before the time counts by the time it took.
    return served_requests(samples) / (min(duration, max(sample.end or 0 for sample in samples)) / 1e9)


def served_requests(samples: Sequence[Sample]) -> float:
    """Requests' worth of output: a request that was cut off counts by the share of its tokens that came.

    Counting ended requests only would tell a low rate for long answers; a prompt that is read but not yet answered
    counts nothing, which errs on the side of a lower capacity. An answer in one piece is there or not.
    """
    return sum(
        min(1.0, sample.output_tokens / sample.asked) if sample.asked else float(sample.outcome == "ok")
        for sample in samples
    )


def _check_served(samples: Sequence[Sample], duration: int) -> None:
    """The capacity of a mix of which a model answers nothing would be that of another mix."""
    by_model: dict[str, list[Sample]] = {}
    for sample in samples:
        by_model.setdefault(sample.model, []).append(sample)
    for model, of in by_model.items():
        errors = [sample.error for sample in of if sample.error != BURST_ENDED]
        if served_requests(of) == 0 and errors:
            raise LoadtestError(f"capacity: {model}: nothing came back in {duration / 1e9:g} s: {errors[0]}")
    if served_requests(samples) == 0:
        why = BURST_ENDED if samples else "nothing was sent"
        raise LoadtestError(f"capacity: nothing came back in {duration / 1e9:g} s: {why}")
