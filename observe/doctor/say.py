"""Evidence in words: a number with its unit and where it was read. Must not know rules."""

from __future__ import annotations

from config_gen.sla.quantity import show_duration
from observe.amounts import show_bytes
from observe.doctor.finding import Evidence


def percent(what: str, share: float, source: str) -> Evidence:
    """`23% of …`."""
    return Evidence(f"{share:.0%} {what}", share, "share", source)


def seconds(what: str, time: float, source: str) -> Evidence:
    """`…: 1.4 s`."""
    return Evidence(f"{what}: {show_duration(time * 1e9)}", time, "s", source)


def part_of(who: str, waits: float, whole: float, source: str) -> Evidence:
    """`a request … waits 3.2 s of 4 s on average`."""
    times = [show_duration(time * 1e9) for time in (waits, whole)]
    return Evidence(f"a request{' ' if who else ''}{who} waits {times[0]} of {times[1]} on average", waits, "s", source)


def number(what: str, value: float, source: str, unit: str = "1") -> Evidence:
    """`…: 12`."""
    shown = f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return Evidence(f"{what}: {shown}{'' if unit == '1' else f' {unit}'}", value, unit, source)


def amount(what: str, size: float, source: str, a_second: bool = False) -> Evidence:
    """`…: 12 GB/s`."""
    unit = "B/s" if a_second else "B"
    return Evidence(f"{what}: {show_bytes(size)}{'/s' if a_second else ''}", size, unit, source)


def known(*evidence: Evidence | None) -> tuple[Evidence, ...]:
    return tuple(it for it in evidence if it is not None)
