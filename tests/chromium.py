"""The real Chromium for tests, as scripts/get-chromium.sh puts it beside this Python: opens a page, looks at it.

It is asked over a pipe, in the words of its own DevTools protocol: JSON, each message ended by a zero byte.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

PATIENCE = 60.0  # s for one answer
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "about:blank")
BOXES = """[...document.querySelectorAll('%s')].map(it => {
  const box = it.getBoundingClientRect();
  return [it.closest('[id]').id, box.x + scrollX, box.y + scrollY, box.width, box.height];
})"""
Box = tuple[float, float, float, float]  # x, y, width and height in CSS pixels


class Page:
    """The browser's only page. `asked` are the addresses it wanted, `errors` what it complained about."""

    def __init__(self, write: int, read: int) -> None:
        self.asked: list[str] = []
        self.errors: list[str] = []
        self._write, self._read, self._rest = write, read, b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int, scale: float = 1.0) -> None:
        """A file, in a window so wide, with `scale` pixels for a CSS pixel; returns when all of it is there."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": scale, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.absolute().as_uri())
        until = time.monotonic() + PATIENCE
        while self.evaluate("location.href + document.readyState") != path.absolute().as_uri() + "complete":
            assert time.monotonic() < until, "the page does not load"

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def boxes(self, selector: str) -> dict[str, Box]:
        """Of the elements that it selects, by their id, or the nearest one around them."""
        return {name: (x, y, wide, high) for name, x, y, wide, high in self.evaluate(BOXES % selector)}

    def screenshot(self) -> Image.Image:
        """All of the page, however long."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        return Image.open(io.BytesIO(base64.b64decode(found))).convert("RGB")

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        until = time.monotonic() + PATIENCE
        while (answer := self._next(until)).get("id") != number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown" or (
            method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning")
        ):
            self.errors.append(json.dumps(told))

    def _next(self, until: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as ready:
            ready.register(self._read, selectors.EVENT_READ)
            while b"\0" not in self._rest:
                assert ready.select(max(0.0, until - time.monotonic())), "Chromium does not answer"
                data = os.read(self._read, 1 << 20)
                assert data, "Chromium ended"
                self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """One with a profile of its own, ended when the block is left."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which("chromium", path=path)
    assert program, "chromium is missing: make .venv/.chromium"
    its_read, write = os.pipe()
    read, its_write = os.pipe()
    shell = f'exec "$0" "$@" 3<&{its_read} 4>&{its_write}'  # where Chromium expects them
    command = ["bash", "-c", shell, program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command, pass_fds=(its_read, its_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(its_read)
    os.close(its_write)
    try:
        yield Page(write, read)
    finally:
        process.kill()  # its children end with it
        process.wait()
        os.close(write)
        os.close(read)
