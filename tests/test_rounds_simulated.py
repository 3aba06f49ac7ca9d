"""The reported case on the simulator: what must hold between its rounds, whatever the constants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_each_round_serves_more_than_the_one_before(tmp_path: Path) -> None:
    told = tmp_path / "rounds.json"
    command = ["simulate", "sla/case-7b-a100.yaml", "--gpu", "a100-80gb", "--model-dir", "sla/case-7b", "--rounds"]
    done = subprocess.run(
        [sys.executable, "-m", "gapless", *command, "--duration", "15s", "--json", told],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    serial, continuous, cached, tiers = json.loads(told.read_text())
    # A step of one sequence reads 13.5 GB of weights at 2 TB/s: 90 tokens take over 0.6 s, and the prompt comes on top.
    assert 0.3 < serial["served"] < 1 / 0.6
    assert continuous["served"] > 5 * serial["served"]
    assert cached["served"] > continuous["served"]
    assert tiers["interactive_p99"] <= cached["interactive_p99"]
    # 6.7 billion parameters of two bytes are 13.5 of its 80 GB; pages may fill it up to nine tenths.
    assert all(13.5 / 80 < one["memory_peak"] <= 0.9 for one in (serial, continuous, cached, tiers))
    assert serial["memory_peak"] < continuous["memory_peak"]
    assert "measured operators" in done.stdout
