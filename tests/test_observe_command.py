"""`gapless observe` as a user meets it: how it ends, what it writes and says, one line for mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from serving import wait_for

from gapless.cli import main
from observe import window
from observe.live import screen
from observe.ring import Ring, segments

Observe = Callable[..., tuple[int, str, str]]
GB = 10**9


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Observe:
    """Runs the command; exit status, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gapless", "observe", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_it_samples_what_is_there_and_says_what_is_not(observe: Observe, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9/metrics"
    status, out, err = observe("--out", tmp_path, "--metrics", nowhere, "--interval", "100ms", "--duration", "300ms")
    first, triton, nvml, last = out.splitlines()
    assert (status, err) == (0, "")
    assert first == f"sampling into {tmp_path}, at most 64 MiB; Ctrl-C ends it"
    assert triton.startswith(f"Triton is missing: {nowhere} does not answer")
    assert nvml.startswith("NVML is missing: ")
    found = window.read(tmp_path)
    assert last == f"{len(found.times)} samples in {tmp_path}" and len(found.times) in (2, 3, 4)
    assert found.latest("observe_up", source="host") == 1 and found.latest("observe_up", source="Triton") == 0
    assert found.latest("host_memory_used_bytes") > 0


@pytest.mark.parametrize(("number", "more"), [(signal.SIGINT, ["--live"]), (signal.SIGTERM, [])])
def test_ctrl_c_ends_it_with_what_was_sampled(tmp_path: Path, number: signal.Signals, more: list[str]) -> None:
    command = [sys.executable, "-m", "gapless", "observe", "--out", str(tmp_path), "--interval", "100ms", *more]
    terminal = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "120"}  # as rich takes it
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=terminal) as process:
        try:
            wait_for(lambda: any(it.stat().st_size > 100 for it in segments(tmp_path)), 60)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    count = len(window.read(tmp_path).times)
    assert f"{count} sample{'' if count == 1 else 's'} in {tmp_path}" in out
    assert ("memory" in out and "of tiers together" in out) == bool(more)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--metrics", "localhost:8002"), "--metrics: 'localhost:8002' is not an address; as http://127.0.0.1:8002/m"),
        (("--dcgm", "http://"), "--dcgm: 'http://' is not an address"),
        (("--live",), "--live: the output is no terminal; leave it out"),
        (("--interval", "5ms"), "--interval: 5 ms is not allowed; at least 100 ms"),
        (("--interval", "5"), "'5' has no unit; write 5ms"),
        (("--size", "4kB"), "'4kB' is not allowed; at least 1MiB"),
        (("--memory", "no/such/folder"), "no/such/folder: No such file or directory; give a folder that gapless"),
        (("--out", "pyproject.toml"), "pyproject.toml: File exists; give a folder that can be written"),
        (("--json", "o.json"), "--json: holds what --memory says; give --memory DIR, or leave it out"),
        (("--memory", "d", "--live"), "--live: says nothing beside --memory; leave it out"),
        (("--memory", "d", "--duration", "5s"), "--duration: says nothing beside --memory; leave it out"),
        (("--memory", "d", "--interval", "1s"), "--interval: says nothing beside --memory; leave it out"),
        (("--trace", "t", "--steps", "s", "--json", "o"), "--json: says nothing beside --trace; leave it out"),
        (("--trace", "t", "--steps", "s", "--dcgm", "x"), "--dcgm: says nothing beside --trace; leave it out"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    observe: Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    status, out, err = observe(*words)
    assert (status, out) == (2, "")
    assert told in " ".join(err.replace("│", " ").split())
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def written(folder: Path, used: np.ndarray, total: float) -> None:
    """A ring of four hours of a GPU's memory, and of an LLM's pages, of which half are in use."""
    with Ring(folder, 2**22) as ring:
        for at, bytes_used in enumerate(used):
            gpu = {'nvml_memory_used_bytes{gpu="0"}': bytes_used, 'nvml_memory_total_bytes{gpu="0"}': total + GB}
            gpu['nvml_memory_reserved_bytes{gpu="0"}'] = GB
            pages = {'gapless_pages_used{model="chat"}': 100.0 + at % 2, 'gapless_pages_total{model="chat"}': 202.0}
            ring.append(at * 10 * GB, gpu | pages)


def test_a_leak_is_told_in_sentences_and_is_an_exit_status(observe: Observe, tmp_path: Path) -> None:
    hour, noise = np.arange(1441) / 360, np.random.default_rng(0).normal(0, 1e7, 1441)
    written(tmp_path, 62e9 + 0.25e9 * hour + 3e9 * ((hour + 0.4) % 1) + noise, 80e9)
    status, out, err = observe("--memory", tmp_path)
    assert (status, err) == (1, "")
    gpu, _, peak, teeth, leak, pages, *rest = out.splitlines()
    assert gpu == "GPU 0" and pages == "KV pages of chat"
    assert peak.startswith("  At its peak 65.") and peak.endswith(" GB of 80 GB, 82%.")
    assert teeth == "  It rises and falls: 4 teeth of 2.95 GB, one every 1 h."
    assert leak.startswith("  LEAK: its lows grow by 25") and "reaches its limit" in leak
    assert rest[2] == "  All of that is reserved; 50% was not even used at the peak."
    assert rest[-1] == "Leaking: GPU 0."


def test_what_the_memory_curves_say_is_written_as_json(observe: Observe, tmp_path: Path) -> None:
    """A leak of a GB an hour from 62 GB, of 80 GB that can be used; and pages, which alternate between two counts."""
    hour, noise = np.arange(1441) / 360, np.random.default_rng(0).normal(0, 1e7, 1441)
    written(tmp_path / "ring", 62e9 + 1e9 * hour + noise, 80e9)
    status, out, err = observe("--memory", tmp_path / "ring", "--json", tmp_path / "memory.json")
    assert (status, err) == (1, "")
    refused = observe("--memory", tmp_path / "ring", "--json", tmp_path / "ring" / "memory.json")
    assert refused[0] == 2 and "lies in" in refused[2] and refused[2].count("\n") == 1
    told = json.loads((tmp_path / "memory.json").read_text())
    assert told["leaking"] == ["GPU 0"]
    gpu, pages = told["memories"]
    assert (gpu["name"], gpu["unit"], gpu["growth"]["ruling"]) == ("GPU 0", "bytes", "leak")
    assert gpu["growth"]["slope"] * 3600 == pytest.approx(1e9, rel=0.02)
    assert (gpu["seconds"], gpu["limit"]) == (14400, 80e9)
    assert gpu["until_full"] / 3600 == pytest.approx(80 - 66, rel=0.02)
    assert (pages["name"], pages["unit"], pages["peak"], pages["limit"]) == ("KV pages of chat", "pages", 101, 202)
    assert (pages["reserved_unused"], pages["until_full"], pages["teeth"]["period"]) == (0.5, None, None)
    assert all(f"  {sentence}" in out.splitlines() for one in told["memories"] for sentence in one["sentences"])


def test_without_a_leak_it_says_so(observe: Observe, tmp_path: Path) -> None:
    written(tmp_path, 62e9 + np.random.default_rng(0).normal(0, 1e7, 1441), 80e9)
    status, out, _ = observe("--memory", tmp_path)
    assert (status, out.splitlines()[-1]) == (0, "Nothing is seen to leak.")


def test_of_what_was_watched_for_less_than_half_an_hour_no_slope_is_told(observe: Observe, tmp_path: Path) -> None:
    """Memory that grows by 36 GB an hour for 29 minutes and 50 seconds."""
    written(tmp_path / "ring", 20e9 + 1e8 * np.arange(180), 80e9)
    status, out, _ = observe("--memory", tmp_path / "ring", "--json", tmp_path / "memory.json")
    lines = out.splitlines()
    why = "watched for 29.8 min; half an hour is needed to tell a leak"
    assert lines.count(f"  Whether it leaks cannot be said: {why}.") == 2
    assert (status, lines[-1]) == (0, "Too short to say whether anything leaks.")
    assert "an hour (" not in out and "LEAK" not in out
    told = json.loads((tmp_path / "memory.json").read_text())
    assert told["leaking"] == [] and [one["growth"]["slope"] for one in told["memories"]] == [None, None]


def test_the_dashboard_shows_rates_queues_pages_and_percentiles() -> None:
    def at(seconds: int, done: int, itl: tuple[int, int, int]) -> tuple[int, dict[str, float]]:
        buckets = zip(("0.01", "0.02", "+Inf"), itl, strict=True)
        return seconds * GB, {
            'nv_inference_request_success{model="chat",version="1"}': float(done),
            'nv_inference_request_success{model="embed",version="1"}': 2.0 * done,
            'nv_inference_pending_request_count{model="embed",version="1"}': 9.0,
            'gapless_waiting{model="chat",tier="api"}': 3.0,
            'gapless_waiting{model="chat",tier="batch"}': 4.0,
            'gapless_running{model="chat"}': 5.0,
            'gapless_pages_used{model="chat"}': 120.0,
            'gapless_pages_total{model="chat"}': 546.0,
            **{f'gapless_itl_seconds_bucket{{le="{le}",model="chat",tier="api"}}': float(n) for le, n in buckets},
            'host_cpu_percent{core="0"}': 93.0,
            'host_memory_used_bytes': 4e9,
            'host_memory_total_bytes': 25e9,
            'nvml_memory_used_bytes{gpu="0"}': 62e9,
            'nvml_memory_total_bytes{gpu="0"}': 80e9,
            'nvml_utilization_percent{gpu="0"}': 95.0,
        }  # fmt: skip

    console = Console(width=120, record=True, file=sys.stderr)
    odd = {'nv_inference_request_success{model="[/x]",version="1"}': 0.0}
    console.print(screen(window.of_samples([(0, odd), (GB, odd)])))
    assert "[/x] 0.0 – – – – – – –" in " ".join(console.export_text().split())
    console.print(screen(window.of_samples([at(0, 10, (0, 0, 0)), at(10, 30, (0, 100, 100))])))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "chat 2.0 – 7 5 120 of 546 – 20 ms –" in lines
    assert "embed 4.0 – 9 – – – – –" in lines
    assert "CPU 93% memory 4 GB of 25 GB" in lines
    assert "GPU 0: busy 95% memory 62 GB of 80 GB – W – °C" in lines
