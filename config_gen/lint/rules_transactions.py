"""Rules about the response cache and about sequences."""

from __future__ import annotations

from collections.abc import Iterator

from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, model_rule


@model_rule(
    "cache-unsupported",
    "error",
    why="Triton refuses a response cache on decoupled models and on sequences.",
    fix="Remove response_cache.",
)
def cache_unsupported(model: Model, repository: Repository) -> Iterator[Spot]:
    if model.config.response_cache.enable:
        if model.decoupled:
            yield at(model, "response_cache on a decoupled model", "response_cache")
        elif model.config.HasField("sequence_batching"):
            yield at(model, "response_cache on a model with sequence_batching", "response_cache")


@model_rule(
    "cache-off",
    "warning",
    why="A model's response cache works only in a server launched with --cache-config; without it every request is "
    "computed, and nothing says so.",
    fix="Launch with --cache-config=local,size=BYTES, or remove response_cache.",
)
def cache_off(model: Model, repository: Repository) -> Iterator[Spot]:
    flags, config = repository.flags, model.config
    launched = flags.has("cache-config") or flags.has("response-cache-byte-size")
    refused = model.decoupled or config.HasField("sequence_batching")  # told by cache-unsupported
    if config.response_cache.enable and not launched and not refused:
        known = "" if flags.file else " (no launch flags are known; see --args)"
        yield at(model, f"response_cache without --cache-config{known}", "response_cache")


@model_rule(
    "sequence-idle",
    "note",
    why="A sequence that pauses for more than max_sequence_idle_microseconds, 1 s where it is not given, is forgotten: "
    "its next request fails for want of a START flag.",
    fix="Set max_sequence_idle_microseconds to the longest pause of a client.",
)
def sequence_idle(model: Model, repository: Repository) -> Iterator[Spot]:
    config = model.config
    if config.HasField("sequence_batching") and not config.sequence_batching.max_sequence_idle_microseconds:
        yield at(model, "sequences end after a pause of 1 s", "sequence_batching")
