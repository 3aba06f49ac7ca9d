"""What a person can mend about a build: one line, naming the file, the field or tensor, and what is allowed."""

from __future__ import annotations

LONGEST = 600  # characters of a message; a name or value in it may be of any length


class BuildError(ValueError):
    """A source that cannot be built, or a place that cannot be written. Its message is cut, its line breaks joined."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        text = " ".join(line.strip() for line in message.splitlines())
        super().__init__(text if len(text) <= LONGEST else f"{text[:400]} ... {text[-150:]}")
