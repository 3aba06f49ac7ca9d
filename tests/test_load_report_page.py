"""The report of a load test in the real Chromium: every plot is drawn, nothing is fetched, it fits its window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chromium import Box, Page, chromium
from load_runs import TIERS
from PIL import Image

from loadtest.canvas import colours
from loadtest.report import Report

LEAST = 60  # pixels of ink in a plot: a level line right across has hundreds
NEAR = 30  # of 255, in each channel
COLOURS = {tier: np.array([*bytes.fromhex(text[1:])]) for tier, text in colours(TIERS["chat"]).items()}
BY_TIER = {  # who has something to show in a plot
    **dict.fromkeys(["ttft", "ttft-over-time", "itl", "itl-over-time", "e2e"], ("interactive", "api")),
    **dict.fromkeys(["e2e-over-time", "rate", "tokens", "in-flight", "waiting"], ("interactive", "api")),
    "errors": ("api",),
}
EMPTY = "document.querySelectorAll('#%s svg [clip-path]').forEach(it => it.remove())"


@pytest.fixture
def report(load_page: tuple[Path, Report]) -> Path:
    return load_page[0]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as page:
        yield page


def inside(shot: Image.Image, box: Box) -> np.ndarray:
    """[H, W, 3] what lies well within a box."""
    x, y, wide, high = box
    return np.asarray(shot.crop((round(x) + 3, round(y) + 3, round(x + wide) - 3, round(y + high) - 3)), int)


def inked(pixels: np.ndarray) -> int:
    """Pixels in a colour, or dark; those of the grid and the ground are light grey."""
    return int(((np.ptp(pixels, axis=2) > 60) | (pixels.max(axis=2) < 110)).sum())


def coloured(pixels: np.ndarray, colour: np.ndarray) -> int:
    """Pixels of this colour, or of one between it and half way to white, as of a dot that others shine through."""
    away, full = 255 - pixels, 255 - colour
    share = away @ full / (full @ full)
    near = np.abs(away - share[..., None] * full).max(axis=2) < NEAR
    return int((near & (share > 0.5)).sum())


def missing(shot: Image.Image, areas: dict[str, Box]) -> dict[str, list[str]]:
    """What should be seen in the plots and is not: ink, and the colour of each tier that has something to show."""
    found: dict[str, list[str]] = {}
    for name, box in areas.items():
        pixels = inside(shot, box)
        model, _, kind = name.removeprefix("plot-").partition("-")
        tiers = [tier for tier in BY_TIER.get(kind, ()) if tier in TIERS.get(model, ())]
        found[name] = [tier for tier in tiers if coloured(pixels, COLOURS[tier]) < 12] + ["ink"] * (
            inked(pixels) < LEAST
        )
    return {name: why for name, why in found.items() if why}


def test_every_plot_is_drawn_and_one_that_is_emptied_would_be_noticed(page: Page, report: Path) -> None:
    page.open(report, width=1280)
    areas = page.boxes("figure svg .area")
    assert set(areas) == {f"plot-{path.stem}" for path in report.parent.glob("*.png")}
    assert all(wide > 400 and high > 150 for _, _, wide, high in areas.values())
    assert missing(page.screenshot(), areas) == {}
    emptied = {"plot-chat-rate": ["interactive", "api", "ink"], "plot-embed-in-flight": ["interactive", "ink"]}
    emptied |= {"plot-machine-cpu": ["ink"], "plot-chat-pages": ["ink"]}
    for name in emptied:
        page.evaluate(EMPTY % name)
    assert missing(page.screenshot(), areas) == emptied


def test_the_page_asks_for_nothing_and_complains_about_nothing(page: Page, report: Path) -> None:
    page.asked.clear()
    page.errors.clear()
    page.open(report, width=1280)
    assert page.evaluate("document.querySelectorAll('main table').length") == 5
    assert page.asked == [report.as_uri()] and page.errors == []


@pytest.mark.parametrize(("width", "abreast"), [(1280, 2), (800, 1), (390, 1)])
def test_it_fits_the_window_and_plots_stand_side_by_side_where_there_is_room(
    page: Page, report: Path, width: int, abreast: int
) -> None:
    page.open(report, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.boxes("figure svg")
    rows = {round(y) for _, y, _, _ in boxes.values()}
    assert abreast == 1 or len(rows) < len(boxes)
    assert all(wide > width / abreast * 0.85 for _, _, wide, _ in boxes.values())
    within = page.boxes("figure svg .area")  # all plots of a column have their axes at the same place
    for x, _, wide, _ in boxes.values():
        same = {(round(a), round(w)) for name, (a, _, w, _) in within.items() if boxes[name][0] == x}
        assert len(same) == 1 and all(x < a and a + w <= x + wide for a, w in same)
