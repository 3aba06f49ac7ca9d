"""What this machine's processor can do that an engine's accuracy depends on."""

from __future__ import annotations

from pathlib import Path

VNNI = ("avx512_vnni", "avx_vnni")


def adds_int8_exactly() -> bool:
    """Whether products of uint8 and int8 are added without saturation.

    x86 before VNNI adds pairs of them in 16 bits (vpmaddubsw), which two large products overflow. Other architectures
    have exact instructions.
    """
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return any(flag in value.split() for flag in VNNI)
    return True
