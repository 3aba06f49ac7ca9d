"""Which packages a command needs, and the line that says what to install where one is missing.

Must not know what the packages are for.
"""

from __future__ import annotations

import re
from importlib import metadata

EXTRAS = {
    "bench": "build,embedded,loadtest",
    "build": "build",
    "compare": "loadtest",
    "demo": "build,embedded,loadtest",
    "doctor": "loadtest,observe",
    "generate": "build,loadtest",
    "loadtest": "loadtest,observe",
    "loadworker": "loadtest",
    "observe": "observe",
    "plan": "build,loadtest",
    "rounds": "build,embedded,loadtest,observe",
    "simulate": "build,loadtest",
    "verify": "build,embedded,loadtest",
}  # of the others, what gapless itself comes with is enough
# Packages that are imported by another name than they are installed by, and those that come with another.
INSTALLED_AS = {
    "PIL": "pillow",
    "flask": "locust",
    "gevent": "locust",
    "google": "protobuf",
    "grpc": "tritonclient",
    "llvmlite": "numba",
    "pydantic_core": "pydantic",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
}


def missing(error: ModuleNotFoundError, command: str) -> str | None:
    """What to install so that `command` runs; None when what is missing is no package that gapless asks for."""
    module = (error.name or "").partition(".")[0]
    package = INSTALLED_AS.get(module, module.replace("_", "-")).lower()
    if package not in _declared():
        return None
    extras = EXTRAS.get(command)
    what = f"gapless[{extras}]" if extras else "gapless"
    return f"{command}: the package {package} is missing; pip install '{what}'"


def _declared() -> set[str]:
    """Every package that gapless or one of its extras asks for."""
    try:
        wanted = metadata.requires("gapless") or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return set()
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in wanted}
