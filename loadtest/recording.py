"""A run as a file: a line on how it was loaded and what was promised, then its raw samples, a line each.

That is all a later run needs to be compared with it. What is read is checked to the type, and that nothing is cut off.
Must not know how runs are compared or printed.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from config_gen.sla.quantity import show_percentile
from config_gen.sla.spec import Targets
from loadtest.run import Client, Worker
from loadtest.samples import Sample, Time
from loadtest.verdict import METRICS

FORMAT = "samples 1"
SAMPLE = TypeAdapter(Sample)


class RecordingError(ValueError):
    """A file that is no whole recording; one line: which file, where, what is wrong."""

    exit_status = 2


@dataclass(frozen=True)
class Sent:
    """A tier of a model, as the SLA file had it when it was loaded; `tokens`: it answers token by token."""

    tokens: bool
    targets: Targets | None


@dataclass(frozen=True)
class Recording:
    """A run of `duration` ns. `sent` by model and tier, in the order of the SLA file."""

    duration: int
    seed: int
    rate_scale: float
    client: Client
    sent: Mapping[tuple[str, str], Sent]
    samples: Sequence[Sample]

    def of(self, model: str, tier: str) -> list[Sample]:
        """The samples of one tier, in the order of sending."""
        found = [sample for sample in self.samples if (sample.model, sample.tier) == (model, tier)]
        return sorted(found, key=lambda sample: (sample.intended, sample.id))


class _Client(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    send_lag: Annotated[float, Field(ge=0)]
    loop_lag: Annotated[float, Field(ge=0)]
    cpu: Annotated[float, Field(ge=0)]
    began: Annotated[int, Field(strict=True, ge=0)]
    workers: tuple[Worker, ...]


class _Tier(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str
    tier: str
    tokens: Annotated[bool, Field(strict=True)]
    targets: Targets | None


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid")
    gapless: Literal["samples 1"]
    duration: Annotated[Time, Field(gt=0)]
    seed: Annotated[int, Field(strict=True)]
    rate_scale: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
    client: _Client
    sent: list[_Tier]
    requests: Annotated[int, Field(strict=True, ge=0)]


def dumps(recording: Recording) -> str:
    """The whole file."""
    sent = [
        {"model": model, "tier": tier, "tokens": of.tokens, "targets": _targets_json(of.targets)}
        for (model, tier), of in recording.sent.items()
    ]
    head = {
        "gapless": FORMAT,
        "duration": recording.duration,
        "seed": recording.seed,
        "rate_scale": recording.rate_scale,
        "client": asdict(recording.client),
        "sent": sent,
        "requests": len(recording.samples),
    }
    lines = [head, *(asdict(sample) for sample in recording.samples)]
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)


def _targets_json(targets: Targets | None) -> dict[str, str] | None:
    """As the SLA file has them, with units."""
    if targets is None:
        return None
    limits = {metric: f"{ns}ns" for metric in METRICS if (ns := getattr(targets, metric)) is not None}
    return limits | {"at": show_percentile(targets.at).lower()}


def read(path: Path) -> Recording:
    """What `dumps` wrote. Raises RecordingError."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}; give what `gapless loadtest --samples` wrote") from None
    except UnicodeDecodeError:
        raise RecordingError(f"{path}: is not text; give what `gapless loadtest --samples` wrote") from None
    try:
        head = _Head.model_validate_json(lines[0])
    except ValidationError as error:
        raise RecordingError(
            f"{path}: line 1: {_first(error)}; give what this version's `gapless loadtest --samples` wrote"
        ) from None
    sent: dict[tuple[str, str], Sent] = {}
    for one in head.sent:
        if (one.model, one.tier) in sent:
            raise RecordingError(f"{path}: line 1: sent: names {_cut(one.model)} {_cut(one.tier)} twice")
        sent[one.model, one.tier] = Sent(one.tokens, one.targets)
    samples = list(_samples(path, lines[1:], sent))
    if len(samples) != head.requests:
        raise RecordingError(f"{path}: holds {len(samples)} samples, and line 1 says {head.requests}: it was cut off")
    client = Client(**dict(head.client))
    return Recording(head.duration, head.seed, head.rate_scale, client, sent, samples)


def _samples(path: Path, lines: Sequence[str], sent: Mapping[tuple[str, str], Sent]) -> Iterator[Sample]:
    seen: dict[tuple[str, str, str], int] = {}  # the line of each request
    for number, line in enumerate(lines, start=2):
        where = f"{path}: line {number}"
        try:
            sample = SAMPLE.validate_json(line, strict=True)
        except ValidationError as error:
            raise RecordingError(f"{where}: {_first(error)}") from None
        what = _wrong(sample, sent.get((sample.model, sample.tier)))
        if (earlier := seen.setdefault((sample.model, sample.tier, sample.id), number)) != number:
            what = f"id {_cut(sample.id)} is that of line {earlier}, too"
        if what:
            raise RecordingError(f"{where}: {what}")
        yield sample


def _wrong(sample: Sample, tier: Sent | None) -> str:
    """What cannot have been of a request to this tier; "" = nothing."""
    if tier is None:
        return f"{_cut(sample.model)} {_cut(sample.tier)} is not among what line 1 says was sent"
    if tier.tokens != bool(sample.asked):
        how = "token by token" if tier.tokens else "in one piece"
        return f"asked is {sample.asked}, and {_cut(sample.model)} answers {how}"
    if sample.outcome == "ok" and (sample.end is None or (tier.tokens and sample.first is None)):
        return "the outcome is ok, and `end` or `first` is null"
    if tier.tokens and sample.outcome == "ok" and not sample.messages:
        return "the outcome is ok, and `messages` is empty"
    return _out_of_order(sample)


def _out_of_order(sample: Sample) -> str:
    """The first time that lies before one that must have been earlier; "" = none."""
    before, name = sample.intended, "intended"
    times = [("first", sample.first), *(("messages", at) for at, _ in sample.messages), ("end", sample.end)]
    for later, at in times:
        if at is not None and at < before:
            return f"{later}: {at} is before {name}, {before}"
        before, name = (before, name) if at is None else (at, later)
    return ""


def _cut(name: str) -> str:
    """As it is, unless it is too long to be read."""
    return name if len(name) <= 60 else reprlib.repr(name)


def _first(error: ValidationError) -> str:
    """The first mistake: where, and what is allowed."""
    found = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in found["loc"])
    value = "" if found["type"] in ("missing", "json_invalid") else f" ({reprlib.repr(found['input'])} is given)"
    return f"{where + ': ' if where else ''}{found['msg']}{value}"
