"""Errors of the command line itself."""


class UsageError(ValueError):
    """An option that cannot be; one line: which, its value, what is allowed."""

    exit_status = 2
