"""`gapless observe --trace`: from a step log, and the ring of samples beside it, to a file for Perfetto's UI.

Must not know what is in an entry.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decode import step_file
from decode.step_file import StepFileError
from gapless.results import opened
from gapless.step_trace import StepTrace
from observe import window
from observe.series import Series
from observe.trace_events import TraceWriter

CPU, GPU = "host_cpu_percent", "nvml_utilization_percent"
UI = "https://ui.perfetto.dev"


def write_trace(log: Path, out: Path, ring: Path | None, last: int | None) -> list[str]:
    """Write the last `last` ns of a step log, or all of it; what it shows, in lines.

    With the samples of `ring` that fall into it. Raises StepFileError, RingError, or UsageError when `out` cannot be
    written.
    """
    header, entries = step_file.read(log)
    first, newest = next(entries, None), step_file.newest(log)
    if first is None or newest is None:
        raise StepFileError(f"{log}: holds no step yet; send a request, and try again")
    samples = None if ring is None else window.read(ring, _shown)
    since = first.began if last is None else max(first.began, newest.began + newest.ended - last)
    with opened(out, "trace") as file:
        writer = TraceWriter(file, f"gapless {log.name}", since)
        trace = StepTrace(writer, header, since)
        trace.add(first)
        for entry in entries:
            trace.add(entry)
        told = trace.close()
        if samples is not None:
            _samples(writer, samples.between(since, trace.ended))
        writer.close()
    return [*told.lines(), f"{out}: open it at {UI}"]


def _shown(series: Series) -> bool:
    return series.name in (CPU, GPU)


def _samples(writer: TraceWriter, seen: window.Window) -> None:
    """The mean of the cores, and each GPU, in percent."""
    cores = list(seen.select(CPU).values())
    busy = {"CPU": np.mean(cores, axis=0)} if cores else {}
    busy |= {f"GPU {series.label('gpu')}": values for series, values in seen.select(GPU).items()}
    for name, values in busy.items():
        for at, value in zip(seen.times.tolist(), values.tolist(), strict=True):
            if value == value:  # it was there
                writer.counter(name, at, {"percent": round(value, 1)})
