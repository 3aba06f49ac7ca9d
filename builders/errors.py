"""What a person can mend about a build: one line, naming the file, the field or tensor, and what is allowed."""

from __future__ import annotations


class BuildError(ValueError):
    """A source that cannot be built, or a place that cannot be written. Line breaks in the message are joined."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines()))
