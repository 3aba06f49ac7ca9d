"""Two models on one server: the death of ours ends its streams and brings it back; the other one serves on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

from repositories import configure, scripted_repository
from serving import Serving, serve, wait_for

from config_gen.plan import ModelPlan, Tensor

PROMPT = "the quick brown fox jumps over the lazy dog"
LONG = {"sampling_parameters": {"max_tokens": 1900}}


def bystander_answers(serving: Serving) -> bool:
    try:
        status, text = serving.post("generate", {"text_input": "anybody?"}, model="bystander")
    except OSError:
        return False
    return status == 200 and json.loads(text)["text_output"] == "anybody?"


def stub_of(serving: Serving, model: str) -> int:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
            arguments = Path(f"/proc/{entry}/cmdline").read_text()
        except OSError:
            continue
        if parent == str(serving.facts["server_pid"]) and f"/{model}/1/model.py" in arguments:
            return int(entry)
    raise AssertionError(f"no stub of {model}")


def test_a_model_that_dies_beside_another_is_loaded_again(smollm2_dir: Path, tmp_path: Path) -> None:
    repository = scripted_repository(tmp_path / "repository", smollm2_dir, 0.005)
    (repository / "bystander" / "1").mkdir(parents=True)
    source = Path(__file__).parent / "models" / "bystander"
    said, told = (Tensor(f"text_{way}put", "TYPE_STRING", (1,)) for way in ("in", "out"))
    configure(repository, ModelPlan("bystander", (), (said,), (told,)))
    shutil.copy(source / "model.py", repository / "bystander" / "1")
    with serve(repository, tmp_path, model="scripted") as serving:
        assert bystander_answers(serving)
        stream = serving.stream(text_input=PROMPT, stream=True, **LONG)
        stream.next()
        os.kill(stub_of(serving, "scripted"), signal.SIGKILL)
        assert "UNAVAILABLE" in stream.error(timeout=5)
        wait_for(lambda: serving.answers() and bystander_answers(serving), 30)
        assert "scripted died with requests open; loading it again" in serving.out.read_text()
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(40) == 0


def test_an_idle_open_stream_does_not_keep_the_server_from_ending(smollm2_dir: Path, tmp_path: Path) -> None:
    repository = scripted_repository(tmp_path / "repository", smollm2_dir, 0.005)
    with serve(repository, tmp_path, "--drain-timeout", "3") as serving:
        stream = serving.stream(text_input=PROMPT, stream=True, sampling_parameters={"max_tokens": 50})
        stream.read()  # an idle stream stays open, which alone would keep a tritonserver from ending
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(15) == 0
        stream.close()
