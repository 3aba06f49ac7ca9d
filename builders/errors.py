"""What a person can mend about a build: one line, naming the file, the field or tensor, and what is allowed."""

from __future__ import annotations


class BuildError(ValueError):
    """A source that cannot be built, or a place that cannot be written."""

    exit_status = 2


def one_line(error: BaseException) -> str:
    """What a library said, without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
