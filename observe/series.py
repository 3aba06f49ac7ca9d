"""Names of series: a metric with its labels, as Prometheus writes them, and pages of them read with its own parser.

As text a series is `name{label="value"}` with its labels sorted, so that equal series have equal texts.
Must not know where a page comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class PageError(ValueError):
    """Text that is no page of metrics; one line."""


@dataclass(frozen=True, slots=True)
class Series:
    """`labels` are pairs of name and value, sorted."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        told = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in self.labels)
        return f"{self.name}{{{told}}}" if told else self.name

    @property
    def plain(self) -> bool:
        """Whether its text can be read again: names with other letters are written in quotes, as here none is."""
        labels = all(_LABEL.fullmatch(name) and not _SURROGATE.search(value) for name, value in self.labels)
        return labels and _NAME.fullmatch(self.name) is not None

    def label(self, name: str) -> str:
        """Its value, empty where the series has no such label."""
        return dict(self.labels).get(name, "")

    def has(self, **labels: str) -> bool:
        return dict(self.labels).items() >= labels.items()


def named(name: str, **labels: str) -> str:
    """The text of a series."""
    return str(Series(name, tuple(sorted(labels.items()))))


def page(text: str) -> Iterator[tuple[Series, float]]:
    """All samples of a page in Prometheus' text format, under the names that stand there. Raises PageError.

    Comments are dropped first: they hold the types, and a sample of the type counter would be renamed to end in
    `_total`, which Triton's do not.
    """
    lines = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    try:
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                yield Series(sample.name, tuple(sorted(sample.labels.items()))), float(sample.value)
    except Exception as error:  # the parser's own: on odd text it runs past ends, and more, and says not what it raises
        told = " ".join(str(error).split())[:80] or type(error).__name__
        raise PageError(f"is no page of metrics: {told}") from None


@lru_cache(maxsize=65536)
def parse(text: str) -> Series:
    """The series that a text names. Raises PageError."""
    for series, _ in page(f"{text} 0"):
        return series
    raise PageError("is no name of a series")
