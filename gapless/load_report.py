"""`--report DIR`: what is seen of the server while a load lasts, and all of the run as a page with its plots.

Must not know how the load is made.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from config_gen.sla.quantity import show_duration
from config_gen.sla.spec import Spec
from gapless import machine
from gapless.errors import UsageError
from gapless.results import check_folder, write_folder
from loadtest import figures, server_figures
from loadtest.canvas import colours
from loadtest.html_report import Section, Setting, render
from loadtest.load_figures import Frame
from loadtest.recording import Recording
from loadtest.report import ModelReport, Report
from observe import timelines, window
from observe.recorder import Recorder
from observe.sources.host import Host
from observe.sources.nvml import Nvml
from observe.sources.page import triton, wrong_url

SHORTEST = 250 * 10**6  # ns between samples: an engine brings its numbers up to date as often
TOLD_WITHIN = 0.75  # s; an engine tells its numbers twice a second, those of the last steps, too
SAMPLES = 600  # of a load, about: more than a plot has room for
PAGE = "report.html"
WRITTEN = (PAGE, "*.png")  # names in its folder


class LoadReport:
    """Made before the load. Raises UsageError when the folder, or the address of the metrics page, cannot be.

    `seen` is what was sampled meanwhile, `said` what sources were missing, a line each.
    """

    def __init__(self, folder: Path, metrics: str | None, url: str, sla: Path, spec: Spec) -> None:
        self.metrics = metrics or f"http://{url.rpartition(':')[0] or url}:8002/metrics"
        if why := wrong_url(self.metrics):
            raise UsageError(f"--metrics: {why}")
        check_folder("report", folder)
        self._folder, self._url = folder, url
        self._sla, self._text, self._tiers = sla, sla.read_text(encoding="utf-8"), spec.tiers
        self.seen = window.of_samples([])
        self.said: list[str] = []
        self._interval = SHORTEST

    @contextmanager
    def recording(self, duration: int) -> Iterator[None]:
        """Look at the server, the GPUs and this machine meanwhile; about `duration` ns."""
        self._interval = max(SHORTEST, duration // SAMPLES)
        with Recorder([triton(self.metrics), Nvml(), Host()], self._interval) as recorder:
            self.said = recorder.said
            for line in self.missing:  # told now, before a load that would have to be sent again
                print(f"--report: {line} (--metrics names another page)", file=sys.stderr, flush=True)
            yield
            time.sleep(TOLD_WITHIN)
        self.seen, self.said = recorder.window, recorder.said

    @property
    def missing(self) -> list[str]:
        """What was not seen of the server itself, a line each."""
        return [line for line in self.said if line.startswith("Triton ")]

    def finish(self, report: Report, taken: Recording) -> Path:
        """Write the page, and each of its plots as a picture beside it. Raises UsageError when they cannot be."""
        with Console(stderr=True).status("Drawing …"):
            self._write(report, taken)
        return self._folder / PAGE

    def _write(self, report: Report, taken: Recording) -> None:
        tiers = [*self._tiers, *(tier for _, tier in taken.sent)]
        frame = Frame.of(taken.duration, taken.samples, colours(tiers))
        engines = {model.name: timelines.engine(self.seen, model.name) for model in report.models}
        sections = [
            *(self._model(model, taken, frame) for model in report.models),
            self._machine([*engines], taken, frame),
        ]
        page = render(report, taken, sections, Setting(self._text, self._facts(report), engines))
        files = {f"{one.name}.png": one.png for section in sections for one in section.pictures}
        write_folder(self._folder, files | {PAGE: page.encode("utf-8", "replace")}, "report")

    def _model(self, model: ModelReport, taken: Recording, frame: Frame) -> Section:
        inside = timelines.of_model(self.seen, model.name)
        pictures = [
            *figures.of_model(model, taken, frame),
            *server_figures.figures(model.name, inside, taken.client.began, frame),
        ]
        why = "; ".join(self.missing) or f"{self.metrics} says nothing of this model"
        told = [] if inside else [f"There are no timelines from inside the server: {why}."]
        return Section(model.name, model.name, pictures, told)

    def _machine(self, models: Sequence[str], taken: Recording, frame: Frame) -> Section:
        told = ["CPU and memory are of the machine that sent the load; GPUs, too, where the metrics page has none."]
        if not self.seen.select("host_process_rss_bytes", process="server"):
            told.append("No server was seen to run on it.")
        told += [f"{line}." for line in self.said if line not in self.missing]
        found = timelines.of_machine(self.seen, models)
        pictures = list(server_figures.figures("machine", found, taken.client.began, frame))
        return Section("machine", "Machine", pictures, told)

    def _facts(self, report: Report) -> Mapping[str, str]:
        how = f"{report.closed_users} users in a closed loop" if report.closed_users else "open loop"
        return {
            "Command": shlex.join(["gapless", *sys.argv[1:]]),
            "SLA file": str(self._sla),
            "Server": self._url,
            "Metrics page": self.metrics,
            "Load": f"{how}, {show_duration(report.duration)}, seed {report.seed}, rates times {report.rate_scale:g}",
            "Machine of the load": machine.describe(),
            "Samples": self._sampled(),
        }

    def _sampled(self) -> str:
        count = len(self.seen.times)
        took = sum(float(values.sum()) for values in self.seen.select("observe_read_seconds").values())
        mean = show_duration(took / max(count, 1) * 1e9)
        return f"{count} of the server and that machine, one every {show_duration(self._interval)}; each took {mean}"
