"""Processes and sockets of a child, through the kernel: die with the parent, see children, cut client connections.

Linux only, as Triton is. Must not know models or why a connection is to be cut.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PIDFD_GETFD = 438  # system call number, the same on every architecture Triton is built for
SHM_REGION = "triton_python_backend_shm_region"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Stub:
    """A Python model's process and the file under /dev/shm that it shares with the server."""

    pid: int
    region: str | None


def die_with_parent(parent: int) -> None:
    """For a fresh child: be killed when the launcher ends, however it ends. Runs between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of children whose own parent dies, so that none is left behind."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stubs_of(server: int) -> list[Stub]:
    """Children of a process; those of a tritonserver are Python models."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
            arguments = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if parent == str(server):
            found.append(Stub(int(entry), next((a for a in arguments if a.startswith(SHM_REGION)), None)))
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def bury(known: Collection[Stub]) -> None:
    """After their server: kill and reap its stubs, which are our children now, and remove their shared memory.

    `known` are those seen while the server lived; one that it was just starting shows up only here.
    """
    while left := stubs_of(os.getpid()):
        for stub in left:
            kill(stub.pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stub.pid, 0)
            release(stub)
    for stub in known:
        release(stub)


def release(stub: Stub) -> None:
    """Remove a dead stub's file under /dev/shm; who still maps it keeps its mapping."""
    if stub.region is not None:
        with contextlib.suppress(OSError):
            os.unlink(f"/dev/shm/{stub.region}")


def cut_connections(pid: int, ports: Collection[int]) -> int:
    """Shut down every connection that clients hold to `ports` of process `pid`; how many there were.

    The process itself only sees that its clients left. Raises OSError where the kernel does not let us
    (pidfd_getfd: Linux 5.6, and the right to trace the process).
    """
    count = 0
    handle = os.pidfd_open(pid)
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                if not os.readlink(f"/proc/{pid}/fd/{entry}").startswith("socket:"):
                    continue
            except OSError:
                continue
            count += _cut(handle, int(entry), ports)
    finally:
        os.close(handle)
    return count


def _cut(handle: int, number: int, ports: Collection[int]) -> bool:
    copy = _libc.syscall(PIDFD_GETFD, handle, number, 0)
    if copy < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    with socket.socket(fileno=copy) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return False
        try:
            connection.getpeername()
            if connection.getsockname()[1] not in ports:
                return False
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # a listening socket, or one that closed meanwhile
            return False
        return True
