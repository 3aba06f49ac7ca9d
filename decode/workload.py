"""The workload of `bench`: a file of requests as token ids.

Must not know engines or how it is replayed.
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass
from pathlib import Path

from decode.types import Request, SamplingParams


class WorkloadError(ValueError):
    """A workload file that cannot be replayed; one line, names the file and the place."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """Greedy requests that ignore end-of-sequence; `shared` are the ids of those with the common prefix."""

    requests: tuple[Request, ...]
    shared: frozenset[str]

    @classmethod
    def read(cls, path: Path, limit: int | None = None, vocab_size: int | None = None) -> Workload:
        """Read a workload file: `requests`, each with `id`, `prompt_ids`, `max_tokens`, `shared_prefix`.

        Token ids must lie below `vocab_size` where it is given. Raises WorkloadError.
        """
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["requests"][:limit]
        except FileNotFoundError:
            raise WorkloadError(f"{path}: no such file; name a workload file") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise WorkloadError(f"{path}: not a workload file: {type(error).__name__}: {error}") from None
        requests, shared, seen = [], set(), dict[str, int]()
        for at, row in enumerate(rows):
            try:
                sampling = SamplingParams(max_tokens=row["max_tokens"], temperature=0, ignore_eos=True, seed=0)
                requests.append(Request(str(row["id"]), _prompt(row["prompt_ids"], vocab_size), sampling))
            except (KeyError, TypeError, ValueError) as error:
                raise WorkloadError(f"{path}: requests[{at}]: {type(error).__name__}: {error}") from None
            first = seen.setdefault(requests[-1].id, at)
            if first != at:
                name = requests[-1].id[:60]
                raise WorkloadError(f"{path}: requests[{at}]: id {name!r} is that of requests[{first}]; each its own")
            if row.get("shared_prefix"):
                shared.add(str(row["id"]))
        if not requests:
            raise WorkloadError(f"{path}: requests: empty; at least one is needed")
        return cls(tuple(requests), frozenset(shared))


def _prompt(ids: object, vocab_size: int | None) -> tuple[int, ...]:
    """Raises ValueError naming the first that is no token id."""
    if not isinstance(ids, list):
        raise ValueError("prompt_ids: a list of token ids is needed")
    below = 2**31 if vocab_size is None else vocab_size
    for at, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < below:
            raise ValueError(f"prompt_ids[{at}]: {reprlib.repr(token)} is not a token id; 0 to {below - 1}")
    return tuple(ids)
