"""Sections of the SLA file that every kind of model shares: tiers, targets, lengths.

Must not know how a file is read.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from config_gen.sla.fields import Count, Duration, Percentile, Section, Share


class Tier(Section):
    """A traffic class. Durations are ns once they are read."""

    weight: Count = 1
    """Its share of the service, beside those of other tiers that wait."""
    queue_timeout: Duration | None = None
    """How long a request may wait before it first runs; without one, for ever."""
    max_queue: Count | None = None
    """How many requests may wait; without one, any number."""
    idle_below: Annotated[Share, Field(gt=0)] | None = None
    """It starts requests only while the load by other tiers is below this share."""
    max_long: Count | None = None
    """How many requests of more than `long_tokens` tokens run at once."""
    long_tokens: Count | None = None
    """Tokens, of the prompt and of the asked output together, above which a request is long."""


class Targets(Section):
    """The promise to one tier, at percentile `at`. Durations are ns once they are read."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [name]} for name in ("ttft", "itl", "e2e")]})

    ttft: Duration | None = None
    """Time to the first token."""
    itl: Duration | None = None
    """Time from one token to the next."""
    e2e: Duration | None = None
    """Time to the whole answer."""
    at: Percentile = Fraction(99, 100)
    """The percentile at which it is kept; p99 unless it is given."""

    @model_validator(mode="after")
    def _promises_something(self) -> Targets:
        if self.ttft is self.itl is self.e2e is None:
            raise ValueError("no target; give at least one of ttft, itl, e2e")
        return self


class Lengths(Section):
    """A lognormal length in tokens, given by two of its percentiles."""

    median: Count
    """Half of all are shorter."""
    p95: Count
    """One in twenty is longer."""

    @model_validator(mode="after")
    def _ordered(self) -> Lengths:
        if self.p95 < self.median:
            raise ValueError(f"p95 {self.p95} is below the median {self.median}; allowed: at least the median")
        return self
