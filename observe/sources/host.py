"""This machine: how busy its cores are, its memory, and what Triton's processes hold of it.

`host_cpu_percent{core}` is of the time since the read before; the first read has none to tell of.
`host_process_rss_bytes{process, model, pid}` and `host_process_cpu_seconds_total` (user and system) have `server` as
process for a tritonserver and `model` for the Python backend's process of a model; memory that they share counts in
each. Must not know what is done with the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import PurePath

import psutil

from observe.series import named

YOUNG = 10.0  # s; a process may still become another one


class Host:
    """Of processes only new ones are looked at closely; there may be thousands."""

    name = "host"

    def __init__(self) -> None:
        self._began = False  # to count how busy the cores are
        self._triton: dict[int, tuple[psutil.Process, dict[str, str]]] = {}
        self._others: set[int] = set()

    def read(self) -> Mapping[str, float]:
        memory = psutil.virtual_memory()
        cores = list(enumerate(psutil.cpu_percent(percpu=True)))  # of no time that is worth it, the first time
        found: dict[str, float] = {
            named("host_cpu_percent", core=str(core)): percent for core, percent in cores if self._began
        }
        self._began = True
        found["host_memory_total_bytes"] = memory.total
        found["host_memory_available_bytes"] = memory.available
        found["host_memory_used_bytes"] = memory.total - memory.available
        found |= dict(self._processes())
        return found

    def close(self) -> None:
        """Nothing is held open."""

    def _processes(self) -> Iterator[tuple[str, float]]:
        pids = set(psutil.pids())
        self._others &= pids
        for pid in sorted(pids - self._others - self._triton.keys()):
            self._look_at(pid)
        for pid, (process, labels) in list(self._triton.items()):
            try:
                if not process.is_running():  # or the number is another's now
                    raise psutil.NoSuchProcess(pid)
                with process.oneshot():
                    spent = process.cpu_times()
                    yield named("host_process_rss_bytes", pid=str(pid), **labels), process.memory_info().rss
                yield named("host_process_cpu_seconds_total", pid=str(pid), **labels), spent.user + spent.system
            except psutil.Error:
                del self._triton[pid]

    def _look_at(self, pid: int) -> None:
        try:
            process = psutil.Process(pid)
            labels = _labels(process.name(), process.cmdline())
            if labels:
                self._triton[pid] = process, labels
            elif time.time() - process.create_time() > YOUNG:
                self._others.add(pid)
        except psutil.Error:
            return  # gone again, or not ours to see


def _labels(name: str, words: list[str]) -> dict[str, str]:
    """Of a process of Triton; empty of any other. The path of a model's code ends in MODEL/VERSION/model.py."""
    if name == "tritonserver":
        return {"process": "server"}
    for word in words:
        parts = PurePath(word).parts
        if any("triton_python_backend_shm" in it for it in words) and len(parts) > 2 and word.endswith("/model.py"):
            return {"process": "model", "model": parts[-3]}
    return {}
