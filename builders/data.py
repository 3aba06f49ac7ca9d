"""Representative data: what calibration and the gate compute on, and that the two never share an item.

Named in the SLA file: a file .npz (arrays) or .txt (a text a line), a folder of pictures, `wheel:NAME[/PATTERN]`
(pictures inside a package), `module:callable` (returns texts, pictures, or a mapping of input name to array). Must not
know models.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from builders.errors import BuildError
from builders.source import wheel_files
from builders.users_code import load_callable, users_code
from engines.errors import ItemError
from engines.pictures import decode

FEWEST = 16  # items on each side
MOST = 400
CROPS = 220  # a side's pictures, where a folder holds fewer: squares cut out of them
SMALLEST_CROP = 96  # pixels a side
PICTURES = (".jpg", ".jpeg", ".png")
PLAIN = 1 / 2  # share of the shorter side that a crop has at least: smaller ones show no whole object

Items = Sequence[Any]


def open_data(calibration: Sequence[str], evaluation: Sequence[str], kind: str) -> tuple[Items, Items]:
    """Items for calibration and for the gate, for a model that takes `kind`: text, image or arrays.

    Raises BuildError when there are too few, or both hold the same.
    """
    if not evaluation:
        items = _read(calibration, kind, "calibration")
        left, right = items[0::2], items[1::2]
    else:
        left, right = _read(calibration, kind, "calibration"), _read(evaluation, kind, "evaluation")
        known = {digest_of(item) for item in left}
        shared = sum(digest_of(item) in known for item in right)
        if shared:
            raise BuildError(f"evaluation: {shared} of {len(right)} items are in calibration, too; allowed: none")
    sides = {"calibration": left, "evaluation": right}
    if kind == "image":
        sides = {side: _cropped(items, side) for side, items in sides.items()}
    for side, items in sides.items():
        if len(items) < FEWEST:
            raise BuildError(f"{side}: {len(items)} items; at least {FEWEST} are needed (twice that, to be split)")
    return _some(sides["calibration"]), _some(sides["evaluation"])


def _some(items: Items) -> Items:
    """At most MOST of them, spread over all."""
    return [items[at * len(items) // MOST] for at in range(MOST)] if len(items) > MOST else items


def digest_of(item: Any) -> str:
    """What tells items apart: of arrays also their names, types and shapes."""
    hashed = hashlib.sha256()
    for name, part in item.items() if isinstance(item, Mapping) else (("", item),):
        if isinstance(part, str | bytes):
            kind, raw = "", part.encode() if isinstance(part, str) else part
        else:
            array = np.asarray(part)
            kind, raw = f"{array.dtype}{array.shape}", array.tobytes()
        hashed.update(f"{name} {kind} {len(raw)} ".encode() + raw)
    return hashed.hexdigest()


def _read(names: Sequence[str], kind: str, key: str) -> Items:
    """Distinct items in a fixed order."""
    distinct: dict[str, Any] = {}
    for name in names:
        items = list(_raw(name, kind, key))
        wrong = next((item for item in items if not _is(item, kind)), None)
        if wrong is not None:
            raise BuildError(f"{key}: {name} holds a {type(wrong).__name__}; allowed for this model: {ALLOWED[kind]}")
        if not items:
            raise BuildError(f"{key}: {name} holds nothing; allowed: {ALLOWED[kind]}")
        distinct |= {digest_of(item): item for item in items}
    return list(distinct.values())


ALLOWED = {"text": "texts", "image": "pictures (JPEG, PNG or uint8 arrays)", "arrays": "an array for each input"}


def _is(item: Any, kind: str) -> bool:
    wanted: Any = {"text": str, "image": (bytes, np.ndarray), "arrays": Mapping}[kind]
    return isinstance(item, wanted)


def _raw(name: str, kind: str, key: str) -> Iterator[Any]:
    path = Path(name).expanduser()
    if name.startswith("wheel:"):
        wheel, _, pattern = name.partition("/")
        files = wheel_files(wheel)
        yield from _pictures([file for file in files if fnmatch(str(file), f"*/{pattern or '*'}")], key)
    elif path.is_dir():
        yield from _pictures(sorted(path.rglob("*")), key)
    elif path.suffix == ".npz":
        yield from _rows(_load_npz(path, key), name, key)
    elif path.is_file():
        yield from (line.strip() for line in _lines(path, key) if line.strip())
    elif ":" in name:
        found = _called(name, key)
        yield from _rows(found, name, key) if isinstance(found, Mapping) else found
    else:
        raise BuildError(f"{key}: {name}: no such file; a file .npz or .txt, a folder, wheel:NAME or module:callable")


def _called(name: str, key: str) -> Any:
    function = load_callable(name, key)
    with users_code(f"{key}: {name}"):
        found = function()
        found = found if isinstance(found, Mapping | str | bytes) or not hasattr(found, "__iter__") else list(found)
    if not isinstance(found, Mapping | list):
        raise BuildError(f"{key}: {name} returned a {type(found).__name__}; allowed: a list, or a mapping of arrays")
    return found


def _pictures(files: Sequence[Path], key: str) -> Iterator[bytes]:
    for path in files:
        if path.suffix.lower() in PICTURES and path.is_file():
            data = path.read_bytes()
            try:
                decode(data)
            except ItemError as error:
                raise BuildError(f"{key}: {path}: {error}") from None
            yield data


def _lines(path: Path, key: str) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise BuildError(f"{key}: {path}: {reason}; allowed: .npz, or a text a line") from None


def _load_npz(path: Path, key: str) -> dict[str, Any]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("one array")
        with file:
            found = dict(file)
        if not all(isinstance(array, np.ndarray) for array in found.values()):
            raise ValueError("something else in a zip")
        return found
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        reason = getattr(error, "strerror", None) or "is no .npz of plain arrays"
        raise BuildError(f"{key}: {path}: {reason}") from None


def _rows(arrays: Mapping[str, Any], name: str, key: str) -> Iterator[dict[str, Any]]:
    counts = {np.shape(array)[:1] for array in arrays.values()}
    if len(counts) != 1 or counts == {()}:
        raise BuildError(f"{key}: {name}: arrays of {sorted(counts)} rows; allowed: as many rows in each")
    for row in range(counts.pop()[0]):
        yield {label: np.asarray(array[row]) for label, array in arrays.items()}


def _cropped(items: Items, side: str) -> Items:
    """The pictures, and so many squares out of each, drawn by a fixed seed, that there are CROPS in all."""
    random, made = Random(side), list(items)
    sources = [picture for item in items if (picture := _decoded(item, side)) is not None]
    while sources and len(made) < CROPS:
        for pixels in sources:
            height, width = pixels.shape[:2]
            size = random.randint(max(SMALLEST_CROP, int(min(height, width) * PLAIN)), min(height, width))
            top, left = random.randint(0, height - size), random.randint(0, width - size)
            made.append(pixels[top : top + size, left : left + size])
    return made[: max(CROPS, len(items))]


def _decoded(item: Any, side: str) -> Any:
    try:
        pixels = np.asarray(decode(item))
    except ItemError as error:
        raise BuildError(f"{side}: {error}") from None
    return pixels if min(pixels.shape[:2]) >= SMALLEST_CROP else None
