"""The repository's own chat model with SmolLM2 on a real Triton, as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from repositories import chat_repository
from serving import Serving, serve, wait_for

GREEDY = {"temperature": 0, "max_tokens": 24}
FRANCE = json.dumps([{"role": "user", "content": "What is the capital of France?"}])


@pytest.fixture(scope="module")
def serving(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("e2e")
    repository = chat_repository(folder / "repository", smollm2_dir)
    with serve(repository, folder, "--option", "kv_cache_memory=256MiB", "--option", "max_num_seqs=8") as serving:
        yield serving


def test_the_printed_line_streams_an_answer(serving: Serving) -> None:
    line = next(line for line in serving.lines if line.startswith("curl "))
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True).stdout
    events = [json.loads(event.removeprefix("data: ")) for event in shown.split("\n\n") if event.strip()]
    assert len(events) > 3
    assert "Paris" in "".join(event["text_output"] for event in events)
    assert events[-1]["finish_reason"] == "stop"


def test_streamed_pieces_are_the_whole_answer(serving: Serving) -> None:
    whole = serving.generate(text_input="Once upon a time", exclude_input_in_output=True, **GREEDY)
    stream = serving.stream(text_input="Once upon a time", stream=True, sampling_parameters=GREEDY)
    pieces, last = stream.read()
    assert "".join(pieces) == whole["text_output"]
    assert len(pieces) > 12 and last["finish_reason"] == "length"
    assert json.loads(last["usage"])["output_tokens"] == 24
    stream.close()


def test_a_chat_is_answered_over_every_road(serving: Serving) -> None:
    whole = serving.generate(messages=FRANCE, **GREEDY)["text_output"]
    assert "Paris" in whole
    stream = serving.stream(messages=FRANCE, stream=True, sampling_parameters=GREEDY)
    assert "".join(stream.read()[0]) == whole
    stream.close()
    status, text = serving.post("generate_stream", {"messages": FRANCE, "stream": True, **GREEDY})
    events = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event.strip()]
    assert status == 200 and "".join(event["text_output"] for event in events) == whole


def test_a_prompt_that_was_seen_is_served_from_the_cache(serving: Serving) -> None:
    prompt = "In the beginning there was a list of many words: " + "alpha beta gamma delta " * 20
    first = serving.generate(text_input=prompt, **GREEDY)
    hits = serving.metric("gapless_prefix_hit_tokens_total")
    second = serving.generate(text_input=prompt, **GREEDY)
    assert second["text_output"] == first["text_output"]
    assert json.loads(first["usage"])["cached_tokens"] < 16 <= json.loads(second["usage"])["cached_tokens"]
    wait_for(lambda: serving.metric("gapless_prefix_hit_tokens_total") > hits)


def test_stop_strings_and_seeds(serving: Serving) -> None:
    stopped = serving.generate(messages=FRANCE, stop="Paris", **GREEDY)
    assert stopped["finish_reason"] == "stop" and "Paris" not in stopped["text_output"]
    drawn = [serving.generate(text_input="A poem:", max_tokens=12, seed=7)["text_output"] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_logprobs_of_greedy_tokens_are_the_best_ones(serving: Serving) -> None:
    rows = json.loads(serving.generate(text_input="One two three", logprobs=3, **GREEDY)["logprobs"])
    assert len(rows) == 24
    for row in rows:
        best = max(row.values(), key=lambda entry: entry["logprob"])
        assert next(iter(row.values())) == best and best["rank"] == 1 and len(row) == 3


def test_a_client_that_leaves_frees_its_pages(serving: Serving) -> None:
    streams = [
        serving.stream(text_input="Count", stream=True, sampling_parameters={"max_tokens": 1500, "ignore_eos": True})
        for _ in range(4)
    ]
    for stream in streams:
        stream.next()
    wait_for(lambda: serving.metric("gapless_running") == 4 and serving.metric("gapless_pages_used") >= 4)
    for stream in streams:
        stream.close(cancel=True)
    wait_for(lambda: serving.metric("gapless_running") == 0 and serving.metric("gapless_pages_used") == 0, 5)


def test_every_declared_metric_is_published(serving: Serving) -> None:
    from observe.metrics import METRICS

    serving.post("generate", {"text_input": ""})
    serving.post("generate", {"text_input": "x", "tier": "vip"})
    wait_for(lambda: serving.metric("gapless_rejects_total", tier="default", reason="invalid") >= 1)
    wait_for(lambda: serving.metric("gapless_rejects_total", tier="", reason="invalid") >= 1)
    for metric in METRICS:
        suffix = "_count" if metric.kind == "histogram" else ""
        labels = {"tier": "default"} if "tier" in metric.labels else {}
        zero = {f"gapless_{name}" for name in ("running", "waiting", "pages_used", "preemptions_total", "swaps_total")}
        assert serving.metric(metric.name + suffix, **labels) > 0 or metric.name in zero, metric.name


def test_how_the_engine_runs_and_what_its_steps_take_is_published(serving: Serving) -> None:
    engine = {"policy": "weighted", "mode": "continuous", "prefix_cache": "on", "weights": "fp32", "device": "cpu"}
    assert serving.metric("gapless_engine_info", **engine, max_model_len="4096", max_num_batched_tokens="256") == 1
    assert serving.metric("gapless_slots") == 8
    began = time.monotonic()
    steps, spent = serving.metric("gapless_step_seconds_count"), serving.metric("gapless_step_seconds_sum")
    lengths = {name: serving.metric(f"gapless_{name}_length_tokens_sum") for name in ("prompt", "output")}
    used = json.loads(serving.generate(text_input="One two three", **GREEDY)["usage"])
    wait_for(lambda: serving.metric("gapless_output_length_tokens_sum") == lengths["output"] + 24)
    assert serving.metric("gapless_prompt_length_tokens_sum") == lengths["prompt"] + used["prompt_tokens"]
    wait_for(lambda: serving.metric("gapless_step_seconds_count") == serving.metric("gapless_steps_total"))
    assert serving.metric("gapless_step_seconds_count") >= steps + 24
    more = serving.metric("gapless_step_seconds_sum") - spent
    assert 0 < more < time.monotonic() - began
    assert 0 < serving.metric("gapless_step_part_seconds_total", part="linear") < spent + more


def test_a_killed_stub_and_then_sigterm_under_load(serving: Serving) -> None:
    long = {"max_tokens": 1500, "ignore_eos": True}
    stream = serving.stream(text_input="Count", stream=True, sampling_parameters=long)
    stream.next()
    os.kill(serving.stub, signal.SIGKILL)
    assert "UNAVAILABLE" in stream.error(timeout=5)
    wait_for(serving.answers, 30)
    running = serving.stream(text_input="Count", stream=True, sampling_parameters={**long, "max_tokens": 60})
    running.next()
    serving.process.send_signal(signal.SIGTERM)
    assert json.loads(running.read()[1]["usage"])["output_tokens"] == 60
    assert serving.process.wait(40) == 0
