"""One line that says what a number was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> str:
    """Processor, cores this process may use, memory, system, Python."""
    model, flags, memory = platform.processor() or platform.machine(), "", ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
            elif name.strip() == "flags":
                flags = ", ".join(f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16") if f in value.split())
        kib = int(Path("/proc/meminfo").read_text().split(maxsplit=2)[1])
        memory = f", {kib / 2**20:.0f} GiB"
    except (OSError, ValueError, IndexError):
        pass
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{model} ({flags}), {cores} cores{memory}, {system}"
