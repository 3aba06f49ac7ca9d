"""The doctor on a ring recorded from the real Triton: two models serve one by one, two others merge requests."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from repositories import scripted_repository
from serving import Serving, serve, wait_for
from sleeping_triton import add_sleeper

from config_gen.batching import Batching
from gapless.cli import main
from observe.doctor.gather import LEAST_SECONDS
from observe.recorder import Recorder
from observe.ring import Ring
from observe.sources.host import Host
from observe.sources.page import triton as page

USERS = 6
GENERATE = "generate", {"text_input": "hello", "max_tokens": 20}
INFER = "infer", {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}
MODELS = {"serial": GENERATE, "merged": GENERATE, "single": INFER, "batched": INFER}


def ask_again_and_again(serving: Serving, model: str, ended: threading.Event) -> None:
    path, body = MODELS[model]
    while not ended.is_set():
        assert serving.post(path, body, model=model)[0] == 200


def recorded(repository: Path, folder: Path) -> None:
    """A ring in `folder` of all models, each under USERS users in a closed loop."""
    with serve(repository, folder, model="serial") as serving:
        ended = threading.Event()
        users = [
            threading.Thread(target=ask_again_and_again, args=(serving, model, ended), daemon=True)
            for model in MODELS
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


def test_of_four_real_models_those_that_serve_one_by_one_are_named(
    smollm2_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    scripted_repository(repository, smollm2_dir, 0.02, "serial", mode="serial")
    scripted_repository(repository, smollm2_dir, 0.02, "merged")
    add_sleeper(repository, "single", Batching(1), 20, 0)
    add_sleeper(repository, "batched", Batching(8), 20, 1)
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
    one_by_one = [(model, "one request at a time", "cause") for model in ("serial", "single")]
    assert [(it["about"], it["title"], it["severity"]) for it in sick] == one_by_one
    evidence, unary = ({one["source"]: one["value"] for one in it["evidence"]} for it in sick)
    assert evidence["gapless_running, gapless_waiting"] >= 0.95
    assert 3 < evidence["gapless_waiting"] <= USERS and evidence["gapless_slots"] == 1
    assert evidence["gapless_output_tokens_total / gapless_steps_total"] <= 1
    assert unary["nv_inference_count / nv_inference_exec_count"] == pytest.approx(1, abs=0.05)
    assert unary["nv_inference_queue_duration_us"] > 2 * unary["nv_inference_compute_infer_duration_us"] > 0.04
