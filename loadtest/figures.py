"""All plots of one model of a run, as its clients saw it. Must not know how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest import latency_figures, latency_over_time, load_figures
from loadtest.canvas import Picture
from loadtest.load_figures import Frame
from loadtest.recording import Recording
from loadtest.report import ModelReport
from loadtest.verdict import METRICS


def of_model(model: ModelReport, taken: Recording, frame: Frame) -> Iterator[Picture]:
    """Each metric's distribution, then that metric over time; then the load."""
    tiers = {one.tier: taken.of(model.name, one.tier) for one in model.classes}
    for metric in METRICS:
        latencies = {one.tier: one.latencies[metric] for one in model.classes if metric in one.latencies}
        if latencies:
            promises = {one.tier: one for one in model.verdicts if one.metric == metric and one.tier in latencies}
            yield latency_figures.distribution(model.name, metric, latencies, promises, frame.colours)
            yield latency_over_time.over_time(model.name, metric, tiers, promises, frame)
    tokens = any("itl" in one.latencies for one in model.classes)
    yield from load_figures.figures(model.name, tiers, frame, tokens)
