"""The report of a load test as a file: its numbers are those of the JSON, nothing in it comes from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from load_runs import HOSTILE, SLA, samples, written
from PIL import Image

from loadtest.canvas import HEIGHT, PNG_DPI, WIDTH
from loadtest.report import Report, as_json

VOID = {"meta", "link", "br", "img", "input", "hr"}
REFERENCES = ("href", "xlink:href", "src", "srcset", "action", "data", "poster", "background")


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                if child.tag == tag or tag == "*":
                    yield child
                yield from child.all(tag)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def find(self, name: str) -> Node:
        [found] = [one for one in self.all("*") if one.attributes.get("id") == name]
        return found

    def rows(self) -> list[list[Node]]:
        """Cells of a table's body."""
        [body] = self.all("tbody")
        return [[cell for cell in row.children if isinstance(cell, Node)] for row in body.all("tr")]


class Tree(HTMLParser):
    """Builds nodes, and minds that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Node("", {})
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert self._open == [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


@dataclass(frozen=True)
class Written:
    path: Path
    report: Report
    root: Node

    @property
    def json(self) -> dict[str, dict[str, object]]:
        return as_json(self.report)["models"]  # type: ignore[no-any-return]


def read(path: Path, report: Report) -> Written:
    return Written(path, report, Tree(path.read_text(encoding="utf-8")).root)


@pytest.fixture(scope="module")
def page(load_page: tuple[Path, Report]) -> Written:
    return read(*load_page)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Of a run in which nothing was answered, of a server nobody saw."""
    failed = [one for one in samples() if one.outcome != "ok"]
    return read(*written(tmp_path_factory.mktemp("lost"), failed, server=None))


def values(cells: list[Node]) -> list[float | None]:
    return [next((float(one.attributes["value"]) for one in cell.all("data")), None) for cell in cells]


@pytest.mark.parametrize("which", ["page", "lost"])
def test_the_numbers_are_those_of_the_json(which: str, request: pytest.FixtureRequest) -> None:
    of: Written = request.getfixturevalue(which)
    counts, latencies, told = {}, {}, []
    for model, tier, *cells in of.root.find("counts").rows():
        counts[model.text, tier.text] = values(cells)
    for model, tier, metric, *cells in of.root.find("percentiles").rows():
        latencies[model.text, tier.text, metric.text] = values(cells)
    for name, model in of.json.items():
        for tier, one in model["classes"].items():  # type: ignore[attr-defined]
            rates = [one.get(f"{it}_per_s") for it in ("offered", "achieved", "goodput", "output_tokens")]
            assert counts.pop((name, tier)) == [*(one[it] for it in ("sent", "ok", "rejected", "failed")), *rates]
            for metric in ("ttft", "itl", "e2e"):
                if (found := one.get(f"{metric}_s")) is not None:
                    expected = [found[it] for it in ("samples", "p50", "p95", "p99")]
                    assert latencies.pop((name, tier, metric.upper())) == expected
        told += [(name, it["tier"], it["verdict"], it["reason"]) for it in model["verdicts"]]  # type: ignore[attr-defined]
    assert counts == latencies == {}
    rows = of.root.find("verdicts").rows()
    words = {"kept": "kept", "MISSED": "missed", "no verdict": "none"}
    assert [(a.text, b.text, words[e.text], f.text) for a, b, _, _, e, f in rows] == told
    assert of.root.find("conclusion").text == of.report.conclusion


def test_each_promise_stands_there_with_what_was_measured(page: Written) -> None:
    """TTFT of the n-th of 40 is 100 + n ms: P90 is that of the 36th."""
    first = page.root.find("verdicts").rows()[0]
    assert [cell.text for cell in first[:3]] == ["chat", "interactive", "TTFT P90 ≤ 150 ms"]
    assert values(first[3:4]) == [pytest.approx(0.135)]
    assert "135 ms" in first[3].text and first[4].text == "kept" and first[4].attributes["class"] == "ruling kept"


def test_what_others_wrote_is_text(page: Written) -> None:
    assert not list(page.root.all("script")) and not list(page.root.all("img"))
    assert page.root.find("sla").text == SLA
    said = [cells[-1].text for cells in page.root.find("errors").rows()]
    assert said == [f"queue of api: {HOSTILE}"]
    assert f"A note: {HOSTILE}" in [node.text for node in page.root.all("p")]


def test_nothing_is_fetched_and_every_id_is_one_things(page: Written) -> None:
    names = Counter(node.attributes["id"] for node in page.root.all("*") if "id" in node.attributes)
    assert set(names.values()) == {1}
    used = []
    for node in page.root.all("*"):
        assert node.tag not in ("link", "iframe", "object", "embed", "base"), node
        assert not [name for name in node.attributes if name.startswith("on")]
        used += [node.attributes[name] for name in REFERENCES if name in node.attributes]
        used += [url for value in node.attributes.values() for url in re.findall(r"url\(([^)]*)\)", value)]
    assert used and all(one.startswith(("#", "data:")) for one in used)
    assert {one[1:] for one in used if one.startswith("#")} <= set(names)
    [style] = page.root.all("style")  # none of a drawing's, which would be the whole page's
    assert "url(" not in style.text and "@import" not in style.text
    [policy] = [node for node in page.root.all("meta") if "http-equiv" in node.attributes]
    assert policy.attributes["content"].startswith("default-src 'none'")


def test_every_plot_is_in_the_page_with_words_and_beside_it_as_a_picture(page: Written) -> None:
    named = set()
    for figure in page.root.all("figure"):
        [drawing], [caption] = figure.all("svg"), figure.all("figcaption")
        [title], [about] = drawing.all("title"), drawing.all("desc")
        assert drawing.attributes["aria-labelledby"] == f"{title.attributes['id']} {about.attributes['id']}"
        assert title.text and about.text == caption.text
        named.add(figure.attributes["id"].removeprefix("plot-"))
    chat = ["ttft", "ttft-over-time", "itl", "itl-over-time", "e2e", "e2e-over-time"]
    chat += ["rate", "tokens", "in-flight", "errors"]
    inside = ["waiting", "running", "pages", "step-time", "steps"]
    embed, machine = ["e2e", "e2e-over-time", "rate", "in-flight"], ["cpu", "processes", "memory"]
    expected = {f"chat-{it}" for it in chat + inside} | {f"embed-{it}" for it in embed}
    assert named == expected | {f"machine-{it}" for it in machine}
    assert {path.name for path in page.path.parent.iterdir()} == {f"{it}.png" for it in named} | {"report.html"}
    for path in page.path.parent.glob("*.png"):
        with Image.open(path) as image:
            assert image.size == (round(WIDTH * PNG_DPI), round(HEIGHT * PNG_DPI))
            assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 8


def test_the_configuration_is_told(page: Written) -> None:
    setting = page.root.find("setting").text
    for told in ("policy", "tiers", "device", "127.0.0.1:8001", "http://127.0.0.1:8002/metrics", "seed 3", "cores"):
        assert told in setting
    assert "P99 of its lag 1 ms sending, 2 ms event loop" in page.root.find("promises").text


def test_a_run_without_an_answer_and_without_a_server_in_sight_has_its_report(lost: Written) -> None:
    assert not lost.report.held
    figures = {node.attributes["id"]: node.text for node in lost.root.all("figure")}
    assert set(figures) == {
        f"plot-{model}-{it}"
        for model, kinds in {
            "chat": "ttft ttft-over-time itl itl-over-time e2e e2e-over-time rate tokens in-flight errors",
            "embed": "e2e e2e-over-time rate in-flight",
        }.items()
        for it in kinds.split()
    }
    assert "api, n = 3, 100.0% lost" in figures["plot-chat-ttft"] and "batch, n = 0" in figures["plot-chat-ttft"]
    assert "no request was answered" in figures["plot-chat-ttft"]
    for model in ("of-chat", "of-embed"):
        assert "There are no timelines from inside the server" in lost.root.find(model).text
