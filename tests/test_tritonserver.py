"""Finding a server: PATH first, else the wheel's, with all that its Python stub needs; warnings before it hurts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.tritonserver import ServerNotFound, find_server, shared_memory_warning


def test_the_server_on_path_comes_first(tmp_path: Path) -> None:
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    server = find_server({"PATH": str(tmp_path)})
    assert server.command == (str(binary),)
    assert server.environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_the_embedded_server_starts_and_finds_this_python(tmp_path: Path) -> None:
    server = find_server({"PATH": os.defpath, "XDG_CACHE_HOME": str(tmp_path)})
    assert server.origin.startswith("nvidia-pytriton")
    folder = next(tmp_path.rglob("python"))
    assert {path.name for path in folder.iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    }
    stub = folder / "triton_python_backend_stub"
    libraries = subprocess.run(["ldd", stub], env=dict(server.environment), capture_output=True, text=True).stdout
    assert "not found" not in libraries
    assert subprocess.run([server.command[0], "--help"], env=dict(server.environment), capture_output=True).returncode
    assert find_server({"PATH": os.defpath, "XDG_CACHE_HOME": str(tmp_path)}) == server  # a second time as well


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "gapless").write_text("in the way")
    with pytest.raises(ServerNotFound, match="set XDG_CACHE_HOME to a writable folder"):
        find_server({"PATH": os.defpath, "XDG_CACHE_HOME": str(tmp_path)})


def test_shared_memory_that_is_too_small_is_said_with_the_remedy() -> None:
    assert shared_memory_warning(0) is None
    warning = shared_memory_warning(10**6)
    assert warning is not None and "--shm-size" in warning and "\n" not in warning
    assert "mount a tmpfs" in (shared_memory_warning(1, "/no/such/folder") or "")
