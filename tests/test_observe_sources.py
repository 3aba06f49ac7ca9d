"""Sources: pages over HTTP, the host, a driver that is faked, and one that is missing, as on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pynvml
import pytest
from fake_driver import FakeDriver

from observe.recorder import record
from observe.sampler import Sampler
from observe.sources.base import SourceError
from observe.sources.host import Host
from observe.sources.nvml import Nvml
from observe.sources.page import dcgm, triton

PAGE = """nv_inference_count{model="a"} 3
gapless_running{model="chat"} 2
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-1"} 0.41
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1"} 61440
other 1
"""


@contextmanager
def served(status: int, body: str) -> Iterator[str]:
    """The address of a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_each_page_is_read_for_its_own_series() -> None:
    with served(200, PAGE) as url:
        assert triton(url).read() == {'nv_inference_count{model="a"}': 3, 'gapless_running{model="chat"}': 2}
        tensor, used = (
            'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{UUID="GPU-1",gpu="0"}',
            'DCGM_FI_DEV_FB_USED{UUID="GPU-1",gpu="0"}',
        )
        assert dcgm(url).read() == {tensor: 0.41, used: 61440}
    with pytest.raises(SourceError, match=r"does not answer: Connection refused$"):
        triton(url).read()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, "", "does not answer: Not Found"),
        (200, "<html>hello</html>", "is no page of metrics: .*"),
        (200, "other 1\n", "has no metrics named nv_… or gapless_…"),
        (200, "", "has no metrics named nv_… or gapless_…"),
    ],
)
def test_a_page_that_is_none_is_a_missing_source(status: int, body: str, reason: str) -> None:
    with served(status, body) as url, pytest.raises(SourceError, match=f"^{url} {reason}$"):
        triton(url).read()


def test_series_that_cannot_be_written_are_left_out() -> None:
    with served(200, 'nv_b 1\n{"nv_é x"} 2\nnv_a{"x y"="1"} 1\n') as url:
        assert triton(url).read() == {"nv_b": 1}


@pytest.mark.parametrize(
    "begin", [b"HTTP/1.1 200 OK\r\n\r\nnv_a 1\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b""]
)
def test_a_page_that_comes_byte_by_byte_is_cut_off(begin: bytes) -> None:
    """Every byte comes well within the timeout, and there is no end to them."""
    over = threading.Event()

    def drip() -> None:
        connected, _ = server.accept()
        with connected, suppress(OSError):
            connected.sendall(begin)
            while not over.wait(0.02):
                connected.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
            with pytest.raises(SourceError, match=r"does not answer: timed out$"):
                replace(triton(url), timeout=0.3).read()
        finally:
            over.set()
            thread.join()


@dataclass
class Scripted:
    """A source that is there or not as it is told to be."""

    there: bool = True
    name: str = "it"

    def read(self) -> Mapping[str, float]:
        if not self.there:
            raise SourceError("no reason")
        return {"x": 1.0}

    def close(self) -> None:
        self.there = False


def test_who_is_missing_or_gone_is_said_once_and_comes_back_without_a_word() -> None:
    said: list[str] = []
    late, other = Scripted(False, "late"), Scripted(True, "other")
    sampler = Sampler([late, other], said.append)
    ups = []
    for late.there, other.there in [(False, True)] * 2 + [(True, False)] * 2 + [(True, True), (False, False)] * 2:
        found = sampler.read()
        assert ("x" in found) == (late.there or other.there)
        ups.append((found['observe_up{source="late"}'], found['observe_up{source="other"}']))
    rest = "no reason; left out until it is there"
    assert said == [f"late is missing: {rest}", f"other is gone: {rest}", f"late is gone: {rest}"]
    assert ups == [(0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (0, 0), (1, 1), (0, 0)]


def test_what_is_sampled_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    driver.fake(monkeypatch)
    ended = threading.Event()
    record(
        [Nvml(), Host(), dcgm("http://127.0.0.1:9/")], 10**9, ended, lambda line: None, lambda now, values: ended.set()
    )
    assert driver.calls == ["init", "shutdown"]


def test_without_a_driver_the_real_library_refuses_and_the_source_is_missing() -> None:
    with pytest.raises(pynvml.NVMLError) as refused:
        pynvml.nvmlInit()
    for _ in range(2):
        with pytest.raises(SourceError, match=f"^{refused.value}$"):
            Nvml().read()


def test_what_a_driver_tells_is_named_with_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDriver().fake(monkeypatch)
    found = Nvml().read()
    reasons = {key for key, value in found.items() if key.startswith("nvml_clocks_held_down{") and value == 1}
    assert reasons == {
        f'nvml_clocks_held_down{{gpu="{gpu}",reason="{reason}"}}'
        for gpu in (0, 1)
        for reason in ("sw_power_cap", "hw_thermal")
    }
    first = {key: value for key, value in found.items() if 'gpu="0"' in key and "held_down" not in key}
    assert first == {
        'nvml_utilization_percent{gpu="0"}': 95,
        'nvml_memory_utilization_percent{gpu="0"}': 40,
        'nvml_memory_reserved_bytes{gpu="0"}': 5e8,
        'nvml_memory_used_bytes{gpu="0"}': 62e9,
        'nvml_memory_total_bytes{gpu="0"}': 80e9,
        'nvml_power_watts{gpu="0"}': 312.5,
        'nvml_power_limit_watts{gpu="0"}': 400,
        'nvml_power_default_limit_watts{gpu="0"}': 450,
        'nvml_temperature_celsius{gpu="0"}': 71,
        'nvml_clock_mhz{clock="sm",gpu="0"}': 1410,
        'nvml_clock_mhz{clock="memory",gpu="0"}': 1215,
        'nvml_pcie_bytes_per_second{direction="rx",gpu="0"}': 12e9,
        'nvml_clock_max_mhz{clock="sm",gpu="0"}': 1980,
        'nvml_clock_max_mhz{clock="memory",gpu="0"}': 2619,
        'nvml_pcie_bytes_per_second{direction="tx",gpu="0"}': 3000,
        'nvml_pcie_generation{gpu="0",of="now"}': 4,
        'nvml_pcie_generation{gpu="0",of="most"}': 5,
        'nvml_pcie_lanes{gpu="0",of="now"}': 8,
        'nvml_pcie_lanes{gpu="0",of="most"}': 16,
        'nvml_persistence_mode{gpu="0"}': 1,
        'nvml_driver_info{cuda="12.8",driver="570.86.15",gpu="0"}': 1,
    }
    missing = {key.replace('gpu="0"', 'gpu="1"') for key in first} - found.keys()
    assert missing == {
        'nvml_memory_reserved_bytes{gpu="1"}',
        'nvml_persistence_mode{gpu="1"}',
        'nvml_pcie_bytes_per_second{direction="rx",gpu="1"}',
        'nvml_pcie_bytes_per_second{direction="tx",gpu="1"}',
    }


def test_a_driver_that_is_lost_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    driver.fake(monkeypatch)
    source = Nvml()
    source.read()
    driver.lost = True
    for told in ("GPU is lost", "Driver Not Loaded"):
        with pytest.raises(SourceError, match=told):
            source.read()
    driver.lost = False
    assert source.read()
    assert driver.calls == ["init", "shutdown", "init", "init"]


def test_the_host_and_the_processes_of_triton(tmp_path: Path) -> None:
    server = tmp_path / "tritonserver"
    server.symlink_to(sys.executable)
    server = Path(str(server))
    code = "import sys; sys.stdin.read()"
    model = [sys.executable, "-c", code, "/models/chat/1/model.py", "triton_python_backend_shm_region_1"]
    host = Host()
    with (
        subprocess.Popen([server, "-c", code], stdin=subprocess.PIPE) as first,
        subprocess.Popen(model, stdin=subprocess.PIPE) as second,
    ):
        try:
            keys = [
                f'host_process_rss_bytes{{pid="{first.pid}",process="server"}}',
                f'host_process_rss_bytes{{model="chat",pid="{second.pid}",process="model"}}',
            ]
            found = host.read()
            spent = [key.replace("rss_bytes", "cpu_seconds_total") for key in keys]
            assert {key for key in found if str(first.pid) in key or str(second.pid) in key} == {*keys, *spent}
            for key, seconds, process in zip(keys, spent, (first, second), strict=True):
                assert found[key] == pytest.approx(psutil.Process(process.pid).memory_info().rss, rel=0.5)
                assert 0 <= found[seconds] <= sum(psutil.Process(process.pid).cpu_times()[:2])
        finally:
            for process in (first, second):
                process.communicate()
    assert not found.keys() & {key for key in host.read() if "rss" in key} & set(keys)
    assert not [key for key in found if key.startswith("host_cpu_percent")]  # nothing to tell of yet
    cores = [key for key in host.read() if key.startswith("host_cpu_percent")]
    assert cores == [f'host_cpu_percent{{core="{core}"}}' for core in range(psutil.cpu_count() or 1)]
    total, used, free = (found[f"host_memory_{it}_bytes"] for it in ("total", "used", "available"))
    assert total == psutil.virtual_memory().total == used + free
