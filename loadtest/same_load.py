"""Whether two runs can be compared: they were sent the same requests, and neither load generator lagged.

Must not know what is compared, or how to print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.recording import Recording
from loadtest.samples import Planned
from loadtest.verdict import METRICS, lag_reason


class DifferentLoads(ValueError):
    """The runs were not sent the same, or one of them does not count; one line."""

    exit_status = 2


@dataclass(frozen=True)
class Asked:
    """What a run was sent, or will be: of each model and tier ids, times in ns and tokens asked for, by time."""

    duration: int
    requests: Mapping[tuple[str, str], Sequence[tuple[str, int, int]]]

    @staticmethod
    def of(run: Recording) -> Asked:
        return Asked(run.duration, {key: [(s.id, s.intended, s.asked) for s in run.of(*key)] for key in run.sent})

    @staticmethod
    def planned(requests: Iterable[Planned], sent: Iterable[tuple[str, str]], duration: int) -> Asked:
        """`sent`: all models and tiers, also those that send nothing in so short a time."""
        found: dict[tuple[str, str], list[tuple[str, int, int]]] = {key: [] for key in sent}
        for one in sorted(requests, key=lambda one: (one.at, one.id)):
            found[one.model, one.tier].append((one.id, one.at, one.max_tokens))
        return Asked(duration, found)


def check(a: Asked, b: Asked, names: tuple[str, str]) -> None:
    """Raise DifferentLoads, with `names`, unless both are the same."""
    for one, other, (name, others) in ((a, b, names), (b, a, names[::-1])):
        if more := [key for key in one.requests if key not in other.requests]:
            raise DifferentLoads(
                f"{name} loads {' '.join(more[0])}, and {others} does not; compare runs of the same models and tiers"
            )
    same = "load both with the same traffic in the SLA file, --seed, --duration and --rate-scale"
    if a.duration != b.duration:
        lasting = " and ".join(f"{one.duration / 1e9:g} s" for one in (a, b))
        raise DifferentLoads(f"{names[0]} and {names[1]} last {lasting}; {same}")
    for key, requests in a.requests.items():
        if requests != b.requests[key]:
            counts = f"{' '.join(key)}: {len(requests)} and {len(b.requests[key])}"
            raise DifferentLoads(f"{names[0]} and {names[1]} were not sent the same requests ({counts}); {same}")


def lagged(run: Recording) -> str | None:
    """Why the load generator was too slow for the numbers of this run to count, or None."""
    promised = [sent.targets for sent in run.sent.values() if sent.targets is not None]
    limits = [getattr(targets, metric) for targets in promised for metric in METRICS]
    return lag_reason(run.client, [limit for limit in limits if limit is not None])


def check_client(run: Recording, name: str) -> None:
    """Raise DifferentLoads, with the `name` of the run, when its load generator lagged."""
    if (why := lagged(run)) is not None:
        raise DifferentLoads(f"{name}: {why}")
