"""What a run says of its load generator: a sentence for people, JSON for machines. Must not judge or measure."""

from __future__ import annotations

from config_gen.sla.quantity import show_duration
from loadtest.run import Client, Worker


def sentence(client: Client | None) -> str:
    """What it used and how late it was; nothing of a simulation."""
    if client is None:
        return ""
    lags = f"{show_duration(client.send_lag)} sending, {show_duration(client.loop_lag)} event loop"
    who = f"{len(client.workers)} workers, together " if client.workers else ""
    return f"Load generator: {who}{client.cpu:.0%} of a core, P99 of its lag {lags}."


def as_json(client: Client | None) -> dict[str, object] | None:
    """Times in seconds; `workers` only where several shared the load."""
    if client is None:
        return None
    workers = {"workers": [_worker_json(worker) for worker in client.workers]} if client.workers else {}
    return _did(client) | workers


def _worker_json(worker: Worker) -> dict[str, object]:
    told = {"name": worker.name, "requests": worker.requests}
    return told | _did(worker) | {"clock_error_s": worker.clock_error / 1e9}


def _did(one: Client | Worker) -> dict[str, object]:
    return {"send_lag_p99_s": one.send_lag / 1e9, "loop_lag_p99_s": one.loop_lag / 1e9, "cores": one.cpu}
