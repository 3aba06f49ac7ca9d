"""What a served load showed beyond the profiles: `served.json` of a repository, read by the next plan.

Profiles are measured on an idle machine, by the engine alone. Behind a server each request takes some time outside of
it, and executions take longer. A correction holds for the very profile that it was seen beside. Must not know policy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from config_gen.facts import Correction
from engines.errors import EngineError
from engines.stamp import Stamp
from gapless.errors import UsageError
from gapless.llm_profile import LAW

FILE = "served.json"
LEAST, MOST = 1e-3, 1e3  # of a factor
LONGEST = 3600 * 10**9  # ns around a request


def read(repository: Path) -> dict[str, Correction]:
    """Those that fit what is built in `repository` now. Raises UsageError when the file is none."""
    path = repository / FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        found = TypeAdapter(dict[str, tuple[str, Correction]]).validate_python(raw)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):  # pydantic's errors are among them
        found = None
    if found is None or not all(_can_be(fixed) for _, fixed in found.values()):
        raise UsageError(f"{path}: is not what `gapless verify --tune` wrote; remove it, or run that again")
    return {name: fixed for name, (key, fixed) in found.items() if key == _key(repository, name)}


def write(repository: Path, corrections: Mapping[str, Correction]) -> None:
    """In place of what was there. Raises UsageError."""
    made = {name: (_key(repository, name), asdict(fixed)) for name, fixed in corrections.items()}
    path = repository / FILE
    beside = path.with_name(f".{FILE}")
    try:
        beside.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; the corrections are lost") from None


def _can_be(fixed: Correction) -> bool:
    return LEAST < fixed.factor < MOST and 0 <= fixed.around < LONGEST  # NaN is in no range


def _key(repository: Path, name: str) -> str:
    """Of the profile that is corrected; empty when there is none."""
    folder = repository / name / "1"
    law = folder / LAW
    if law.is_file():
        return hashlib.sha256(law.read_bytes()).hexdigest()[:16]
    try:
        return Stamp.read(folder).profile
    except EngineError:
        return ""
