"""Locust's own web page of a run under way: charts and tables to look at, nothing to press.

Its buttons would start users anew or stop them, and what was planned would be sent twice or not at all: whatever would
change the run is refused. Must not know the schedule, targets or the connection.
"""

from __future__ import annotations

import logging

import gevent
from flask import abort, request
from locust.env import Environment
from locust.stats import stats_history
from locust.web import WebUI

HOST = "127.0.0.1"
READING = ("GET", "HEAD", "OPTIONS")
CHANGING = ("/swarm", "/stop", "/stats/reset")  # older versions of locust answer GET to the last two


class Page:
    """The page on a free port, from now until it is closed."""

    def __init__(self, environment: Environment) -> None:
        logging.getLogger("locust").setLevel(logging.CRITICAL)  # what a browser asks for is no news
        page = environment.create_web_ui(HOST, port=0, delayed_start=True)
        assert page.app is not None
        page.app.before_request(_refuse_changes)
        page.start()
        self._page, self._history = page, gevent.spawn(stats_history, environment.runner)
        self.told = f"Locust's page, until the run ends: http://{HOST}:{_port(page)}/"

    def close(self) -> None:
        self._history.kill()
        self._page.stop()


def _refuse_changes() -> None:
    if request.method not in READING or request.path in CHANGING:
        abort(405)


def _port(page: WebUI) -> int:
    """The server is made by a greenlet of its own."""
    while page.server is None or not page.server.started:
        gevent.sleep(0.01)
    return int(page.server.server_port)
