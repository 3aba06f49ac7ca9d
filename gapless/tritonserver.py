"""Finds a tritonserver this machine can run: the one on PATH, else the one inside the wheel nvidia-pytriton.

Owns the environment such a server needs (loader path, backend folder with the right stub). Must not know models,
ports or how a server is kept alive.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STUB = "triton_python_backend_stub"
SHM_PER_MODEL = 64 << 20  # bytes of /dev/shm that a busy Python model has been seen to use


class ServerNotFound(RuntimeError):
    """No tritonserver can be started here; the message says what to install."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class TritonServer:
    """How to start a tritonserver: program and flags, environment to start it with, and where it came from."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    origin: str


def find_server(environ: Mapping[str, str] = os.environ) -> TritonServer:
    """The tritonserver on PATH, else the embedded one. Raises ServerNotFound."""
    binary = shutil.which("tritonserver", path=environ.get("PATH"))
    if binary:
        return TritonServer((binary,), _python_first(environ), binary)
    return _embedded(environ)


def shared_memory_warning(models: int = 1, path: str = "/dev/shm") -> str | None:
    """One line with the remedy when /dev/shm is too small for `models` Python models, else None."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return f"{path} is missing: Triton's Python backend cannot start without shared memory; mount a tmpfs there"
    free, need = stat.f_bavail * stat.f_frsize, models * SHM_PER_MODEL
    if free >= need:
        return None
    return (
        f"{path} has {free >> 20} MiB free, {need >> 20} MiB are wanted for {models} Python model(s); "
        f"enlarge it (docker run --shm-size=1g, or mount -o remount,size=1g {path})"
    )


def _embedded(environ: Mapping[str, str]) -> TritonServer:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerNotFound("no tritonserver on PATH and none installed: pip install 'gapless[embedded]'")
    root = Path(next(iter(spec.submodule_search_locations))) / "tritonserver"
    stub = root / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}" / STUB
    if not stub.is_file():
        have = ", ".join(sorted(p.name for p in stub.parent.parent.glob("*")))
        raise ServerNotFound(f"nvidia-pytriton has no stub for Python {stub.parent.name}; it has {have}")
    version = importlib.metadata.version("nvidia-pytriton")
    backends = _assemble(root, stub, environ)
    libraries = [str(root.parent.parent / "nvidia_pytriton.libs"), str(_libpython_folder())]
    env = dict(_python_first(environ))
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *filter(None, [env.get("LD_LIBRARY_PATH")])])
    command = (
        str(root / "bin" / "tritonserver"),
        f"--backend-directory={backends}",
        f"--cache-directory={root / 'caches'}",
    )
    return TritonServer(command, env, f"nvidia-pytriton {version}")


def _assemble(root: Path, stub: Path, environ: Mapping[str, str]) -> Path:
    """A backend folder of links with `stub` beside libtriton_python.so; the wheel itself stays untouched.

    The folder is named after the wheel, so those of two environments never mix.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", tempfile.gettempdir())) / ".cache")
    name = f"py{stub.parent.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:16]}"
    target = cache / "gapless" / "triton-backends" / name
    wanted = {
        "libtriton_python.so": root / "backends/python/libtriton_python.so",
        "triton_python_backend_utils.py": root / "backends/python/triton_python_backend_utils.py",
        STUB: stub,
    }
    folder = target / "python"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for link, source in wanted.items():
            if not (folder / link).is_symlink() or os.readlink(folder / link) != str(source):
                fresh = folder / f".{link}.{os.getpid()}"
                fresh.symlink_to(source)
                fresh.replace(folder / link)
    except OSError as error:
        raise ServerNotFound(
            f"cannot write {folder} ({error.strerror}); set XDG_CACHE_HOME to a writable folder"
        ) from error
    return target


def _python_first(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment in which an embedded Python finds this interpreter, hence its site-packages."""
    path = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    return {**environ, "PATH": path}


def _libpython_folder() -> Path:
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    places = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib", sysconfig.get_config_var("LIBPL")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    places += [f"/usr/lib/{multiarch}", f"/lib/{multiarch}", "/usr/lib64", "/usr/lib"]
    for place in filter(None, places):
        if (Path(place) / name).exists():
            return Path(place)
    package = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
    raise ServerNotFound(f"{name} not found, which Triton's Python stub needs: apt-get install {package}")
