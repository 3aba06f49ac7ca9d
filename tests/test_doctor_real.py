"""The doctor on a ring recorded from the real Triton: one model serves one by one, another merges requests."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from repositories import scripted_repository
from serving import Serving, serve, wait_for

from gapless.cli import main
from observe.doctor.gather import LEAST_SECONDS
from observe.recorder import Recorder
from observe.ring import Ring
from observe.sources.host import Host
from observe.sources.page import triton as page

USERS = 6
BODY = {"text_input": "hello", "max_tokens": 20}


def ask_again_and_again(serving: Serving, model: str, ended: threading.Event) -> None:
    while not ended.is_set():
        assert serving.post("generate", BODY, model=model)[0] == 200


def recorded(repository: Path, folder: Path) -> None:
    """A ring in `folder` of both models, each under USERS users in a closed loop."""
    with serve(repository, folder, model="serial") as serving:
        ended = threading.Event()
        users = [
            threading.Thread(target=ask_again_and_again, args=(serving, model, ended), daemon=True)
            for model in ("serial", "merged")
            for _ in range(USERS)
        ]
        sources = [page(f"http://127.0.0.1:{serving.facts['metrics_port']}/metrics"), Host()]
        for user in users:
            user.start()
        try:
            with Recorder(sources, 200 * 10**6, Ring(folder / "ring", 2**22)) as recorder:
                wait_for(lambda: recorder.window.seconds > LEAST_SECONDS + 0.5)
        finally:
            ended.set()
            for user in users:
                user.join(30)


def test_of_two_real_models_only_the_one_that_serves_one_by_one_is_named(
    smollm2_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    scripted_repository(repository, smollm2_dir, 0.02, "serial", mode="serial")
    scripted_repository(repository, smollm2_dir, 0.02, "merged")
    recorded(repository, tmp_path)
    found = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["gapless", "doctor", str(tmp_path / "ring"), "--json", str(found)])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr().out
    assert ended.value.code == 1, out
    assert " ".join(out.split()).startswith(
        "serial: one request at a time; merge requests: give serial max_num_seqs 32 or more"
    )
    told = json.loads(found.read_text())
    sick = [finding for finding in told["findings"] if finding["severity"] != "hint"]
    assert [(it["about"], it["title"], it["severity"]) for it in sick] == [("serial", "one request at a time", "cause")]
    evidence = {one["source"]: one["value"] for one in sick[0]["evidence"]}
    assert evidence["gapless_running, gapless_waiting"] >= 0.95
    assert 3 < evidence["gapless_waiting"] <= USERS and evidence["gapless_slots"] == 1
    assert evidence["gapless_output_tokens_total / gapless_steps_total"] <= 1
