"""What lines of a tritonserver's log mean; the words are those of version 2.51. Must not know who reads them."""

from __future__ import annotations

import re
from collections.abc import Collection

from gapless.triton_http import one_line

FAILED_LOAD = re.compile(r"failed to load '([^']+)' version \d+: \w+: (?:TritonModelException: )?(.*)")
ERROR = re.compile(r"^E\d|Poll failed|unrecognized option|requires an argument|^error:", re.IGNORECASE)
ALL_ANSWERED = "All models are stopped, unloading models"


def reason(lines: Collection[str]) -> str:
    """The most telling line of a server that has ended."""
    for line in lines:
        if failed := FAILED_LOAD.search(one_line(line)):
            return f"{failed[1]}: {failed[2]}"
    errors = [line for line in lines if ERROR.search(line) and "CudaDriverHelper" not in line]
    line = (errors or list(lines)[-1:] or ["it printed nothing"])[0]
    return one_line(line.partition("] ")[2].strip('"') or line)


def all_answered(lines: Collection[str]) -> bool:
    """Whether a server that was told to end has no request left."""
    return any(ALL_ANSWERED in line for line in lines)
