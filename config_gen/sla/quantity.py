"""Quantities with units: `300ms`, `8/s`, `40%`, `16GiB`, `p99`. Text in, exact numbers out.

A bare number where a unit is needed is an error that shows how to write it, never a guess.
Must not know YAML or where a quantity stands; callers add the path.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction

_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(.*)", re.ASCII)
MOST_PER_SECOND = 10**6
_LONGEST = 40  # characters of a quantity; what is longer is none

_DURATION = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_RATE = {"/s": Fraction(1), "/m": Fraction(1, 60), "/min": Fraction(1, 60), "/h": Fraction(1, 3600)}
_SHARE = {"%": Fraction(1, 100)}
_MEMORY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MEMORY |= {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class QuantityError(ValueError):
    """Text that is not the quantity asked for; the message holds the value and what is allowed."""


def _parse(value: object, kind: str, units: Mapping[str, int | Fraction], unit: str) -> Fraction:
    """The number in `value` times its unit. `unit` is the one shown when it is missing."""
    allowed = f"a {kind} such as {'8' if unit.startswith('/') else '40'}{unit} (units: {', '.join(units)})"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        shown = str(value).lower() if isinstance(value, bool) else reprlib.repr(value)
        raise QuantityError(f"{shown} is not a {kind}; write {allowed}")
    text = str(value).strip()
    if len(text) > _LONGEST:
        raise QuantityError(f"'{text[:37]}...' is too long for a {kind}; write {allowed}")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise QuantityError(f"'{text}' is not a {kind}; write {allowed}")
    number, found = match.groups()
    if not found:
        whole = f"{float(Fraction(number) * 100):g}% or " if unit == "%" and Fraction(number) <= 1 else ""
        raise QuantityError(f"'{text}' has no unit; write {whole}{text}{unit}")
    if found not in units:
        raise QuantityError(f"'{text}' has the unknown unit '{found}'; allowed: {', '.join(units)}")
    return Fraction(number) * units[found]


def duration(value: object, least: int = 1) -> int:
    """Nanoseconds, at least `least` (1 or 0): `300ms` is 300_000_000. Raises QuantityError."""
    ns = int(_parse(value, "duration", _DURATION, "ms"))
    if ns < least:
        raise QuantityError(f"'{value}' is not allowed; a duration > 0")
    if ns > 10**6 * _DURATION["h"]:
        raise QuantityError(f"'{value}' is not allowed; at most 1000000h")
    return ns


def rate(value: object) -> float:
    """Events per second, more than 0: `90/min` is 1.5. Raises QuantityError."""
    per_second = float(_parse(value, "rate", _RATE, "/s"))
    if per_second <= 0:
        raise QuantityError(f"'{value}' is not allowed; a rate > 0")
    if per_second > MOST_PER_SECOND:
        raise QuantityError(f"'{value}' is not allowed; at most {MOST_PER_SECOND}/s")
    return per_second


def share(value: object) -> float:
    """A share from 0 to 1: `40%` is 0.4. Raises QuantityError."""
    part = float(_parse(value, "share", _SHARE, "%"))
    if part > 1:
        raise QuantityError(f"'{value}' is not allowed; a share from 0% to 100%")
    return part


def memory(value: object, least: int = 1) -> int:
    """Bytes, at least `least` (1 or 0): `16GiB` is 16 * 1024**3, `16GB` is 16 * 10**9. Raises QuantityError."""
    size = int(_parse(value, "memory size", _MEMORY, "GiB"))
    if size < least:
        raise QuantityError(f"'{value}' is not allowed; at least 1B")
    if size > 1024 * _MEMORY["TiB"]:
        raise QuantityError(f"'{value}' is not allowed; at most 1024TiB")
    return size


def percentile(value: object) -> Fraction:
    """`p99` is 99/100, exact, so that ranks computed from it are. Raises QuantityError."""
    match = re.fullmatch(r"p(\d{1,2}(?:\.\d{1,6})?)", value, re.ASCII) if isinstance(value, str) else None
    if match is None or Fraction(match[1]) == 0:
        raise QuantityError(f"{reprlib.repr(value)} is not a percentile; write p50, p95, p99 or p99.9")
    return Fraction(match[1]) / 100


def show_duration(ns: float) -> str:
    """For people: `30 µs`, `4.2 ms`, `850 ms`, `2.5 s`, `∞`."""
    if ns == float("inf"):
        return "∞"
    if 0 < ns < 50_000:  # else it would read as no time at all
        return f"{ns / 1000:.3g} µs" if ns >= 1000 else f"{ns:.3g} ns"
    ms = round(ns / 10**6, 1)
    if ms < 999.5:
        return f"{ms:.0f} ms" if ms >= 10 else f"{ms:g} ms"
    return f"{round(ms / 1000, 2):g} s"


def show_percentile(q: Fraction) -> str:
    """`P99`, `P99.9`."""
    return f"P{float(q * 100):g}"
