"""Amounts and lists for people. Must not know what they are of."""

from __future__ import annotations

from collections.abc import Sequence

from config_gen.sla.quantity import show_duration


def show_bytes(amount: float) -> str:
    """`62.1 GB`, `−3 MB`."""
    size = abs(amount)
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{_sign(amount)}{size / unit:.3g} {name}"
    return f"{_sign(amount)}{size:.0f} B"


def show_pages(amount: float) -> str:
    size = abs(amount)
    return (
        f"{_sign(amount)}{size:.3g} page{'' if size == 1 else 's'}"
        if size < 100
        else f"{_sign(amount)}{size:.0f} pages"
    )


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; nothing of none."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def show_time(seconds: float) -> str:
    """`4 h`, `2.5 days`; below a minute as any duration."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit or (seconds >= unit and name != "days"):
            return f"{seconds / unit:.3g} {name}"
    return show_duration(seconds * 1e9)


def _sign(amount: float) -> str:
    return "−" if amount < 0 else ""
