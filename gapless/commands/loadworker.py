"""`gapless loadworker`: joins a load test that `gapless loadtest --workers N --bind HOST:PORT` leads."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gapless.addresses import address
from loadtest import remote


def run(
    master: Annotated[str, typer.Argument(help="where `gapless loadtest --bind` listens", metavar="HOST:PORT")],
) -> None:
    """Send a share of the requests of one run, and hand its samples over; waits five minutes for the run to be there.

    All workers send by one time, which the master finds from round trips: clocks that are set differently do no harm,
    and a clock that drifts moves when a worker sends against the others, never a latency. The link is neither
    authenticated nor encrypted: it belongs into a network that is trusted. Exit 0 when all was handed over, 1 when the
    run was ended before, 2 when there is none or the server cannot be used.
    """
    remote.work(
        *address("HOST:PORT", master),
        tell=lambda line: print(line, flush=True),
        tell_waiting=lambda line: print(line, file=sys.stderr, flush=True),
    )
