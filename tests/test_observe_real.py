"""The metrics page of the real Triton, sampled: its counters rise by what the server's own statistics say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lint_pairs import batching, config, model
from plain_triton import Triton, triton
from serving import wait_for

from observe import window
from observe.ring import Ring
from observe.sampler import Sampler
from observe.sources.host import Host
from observe.sources.page import triton as page

SENT = {"one": 7, "two": 3}


def statistics(server: Triton, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.call(f"/v2/models/{name}/stats")[1])["model_stats"][0]
    return found


def test_a_sampled_page_says_what_the_server_says_of_itself(tmp_path: Path) -> None:
    for name, files in (("one", model(config(), "one")), ("two", batching("", seconds=0.01))):
        for path, text in files.items():
            target = tmp_path / "models" / path.replace("NAME", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text((text or "").replace("NAME", name))
    said: list[str] = []
    with triton(tmp_path / "models", "--metrics-interval-ms=100") as server, Ring(tmp_path / "ring", 2**20) as ring:
        url = f"http://127.0.0.1:{server.ports['metrics']}/metrics"
        sampler = Sampler([page(url), Host()], said.append)
        ring.append(0, sampler.read())
        assert server.up(60), server.log
        wait_for(lambda: server.call("/v2/health/ready")[0] == 200, 60)
        sampler.read()
        ring.append(1, sampler.read())
        for name, count in SENT.items():
            for _ in range(count):
                assert server.infer(name, (2, 1)).status == 200
            assert server.infer(name, (9, 1)).status == 400  # more than the batch may have: not counted as served
        wait_for(
            lambda: all(statistics(server, it)["inference_stats"]["success"]["count"] == SENT[it] for it in SENT), 9
        )
        ring.append(2, sampler.read())
        told = {name: statistics(server, name) for name in SENT}
        stubs = {name: server.stubs(name) for name in SENT}
        server.process.kill()
        server.process.wait()
        ring.append(3, sampler.read())
    found = window.read(tmp_path / "ring")
    served = found.between(1, 2)
    for name, stats in told.items():
        success, queue = stats["inference_stats"]["success"], stats["inference_stats"]["queue"]
        assert served.delta("nv_inference_request_success", model=name) == success["count"] == SENT[name]
        assert served.delta("nv_inference_count", model=name) == stats["inference_count"] == 2 * SENT[name]
        assert served.delta("nv_inference_exec_count", model=name) == stats["execution_count"]
        for metric, part in (("request", success), ("queue", queue)):
            taken = served.delta(f"nv_inference_{metric}_duration_us", model=name)
            assert taken == pytest.approx(part["ns"] / 1000, abs=SENT[name])  # each request is cut to whole µs
        assert stubs[name] == len(served.select("host_process_rss_bytes", model=name)) == 1
    assert [line.split(":")[0] for line in said] == ["Triton is missing", "Triton is gone"]
    for series in found.select("nv_inference_count"):
        assert [value == value for value in found.values[series]] == [False, True, True, False]
