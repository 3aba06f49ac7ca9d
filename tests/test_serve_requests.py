"""What clients see of a served model on the real Triton: every input, leaving, and nothing leaking.

The model is the scripted one (tests/models): the real edge, service and engine over an executor that draws by rule.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from repositories import scripted_repository
from serving import Serving, Stream, serve, wait_for

LONG = {"sampling_parameters": {"max_tokens": 1900}}
PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def serving(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("requests")
    with serve(scripted_repository(folder / "repository", smollm2_dir, 0.002), folder) as serving:
        yield serving


def test_by_default_sixteen_tokens_follow_the_prompt(serving: Serving) -> None:
    answer = serving.generate(text_input=PROMPT)
    assert answer["text_output"].startswith(PROMPT) and len(answer["text_output"]) > len(PROMPT)
    assert json.loads(answer["usage"])["output_tokens"] == 16
    assert answer["finish_reason"] == "length"


def test_the_prompt_is_left_out_when_asked_or_streaming(serving: Serving) -> None:
    alone = serving.generate(text_input=PROMPT, exclude_input_in_output=True)["text_output"]
    assert serving.generate(text_input=PROMPT)["text_output"] == PROMPT + alone
    stream = serving.stream(text_input=PROMPT, stream=True)
    pieces, last = stream.read()
    assert "".join(pieces) == alone and len(pieces) > 1
    assert set(last) == {"finish_reason", "usage"}
    stream.close()


def test_clients_may_send_numbers_as_strings(serving: Serving) -> None:
    answer = serving.generate(
        text_input=PROMPT, sampling_parameters='{"max_tokens": "3", "temperature": "0.5", "top_p": null}'
    )
    assert json.loads(answer["usage"])["output_tokens"] == 3


def test_parameters_in_the_nested_form_of_generate(serving: Serving) -> None:
    answer = serving.generate(text_input=PROMPT, parameters={"max_tokens": 5, "stream": False, "tier": "batch"})
    assert json.loads(answer["usage"])["output_tokens"] == 5
    wait_for(lambda: serving.metric("gapless_finished_total", tier="batch", reason="length") >= 1)


def test_prompt_as_token_ids(serving: Serving) -> None:
    stream = serving.stream(input_ids=list(range(100, 150)), stream=True, sampling_parameters={"max_tokens": 4})
    assert json.loads(stream.read()[1]["usage"]) == {"prompt_tokens": 50, "cached_tokens": 0, "output_tokens": 4}
    stream.close()


def test_logprobs_come_only_when_asked_for(serving: Serving) -> None:
    assert "logprobs" not in serving.generate(text_input=PROMPT)


def test_the_same_request_id_twice_at_once(serving: Serving) -> None:
    first = serving.stream("twin", text_input=PROMPT, stream=True, sampling_parameters={"max_tokens": 1000})
    first.next()
    second = serving.stream("twin", text_input=PROMPT, stream=True)
    assert "'twin' is in use" in second.error()
    assert first.read()[1]["finish_reason"] == "length"
    second.send("twin", text_input=PROMPT, stream=True)  # free again
    assert second.read()[1]["finish_reason"] == "length"
    first.close()
    second.close()


def test_a_full_queue_says_so_and_is_counted(serving: Serving) -> None:
    before = serving.metric("gapless_rejects_total", reason="queue_full")
    streams = []

    def send(count: int) -> list[Stream]:
        sent = [serving.stream(tier="batch", text_input=PROMPT, stream=True, **LONG) for _ in range(count)]
        streams.extend(sent)
        return sent

    for _ in range(8):
        send(1)[0].next()
    send(2)
    wait_for(lambda: serving.metric("gapless_waiting", tier="batch") == 2)
    for stream in send(3):
        assert "queue of tier batch is full (2)" in stream.error()
    for stream in streams:
        stream.close(cancel=True)
    wait_for(lambda: serving.metric("gapless_rejects_total", reason="queue_full") == before + 3)
    free_again(serving)


def free_again(serving: Serving) -> None:
    wait_for(lambda: serving.metric("gapless_running") == 0 and serving.metric("gapless_pages_used") == 0)


def test_a_client_that_leaves_frees_its_pages(serving: Serving) -> None:
    streams = [serving.stream(text_input=PROMPT, stream=True, **LONG) for _ in range(6)]
    for stream in streams:
        stream.next()
    wait_for(lambda: serving.metric("gapless_running") == 6 and serving.metric("gapless_pages_used") > 0)
    tokens = serving.metric("gapless_output_tokens_total")
    for stream in streams:
        stream.close(cancel=True)
    free_again(serving)
    assert serving.metric("gapless_output_tokens_total") - tokens < 6 * 1900 / 2
    wait_for(lambda: serving.metric("gapless_finished_total", tier="interactive", reason="cancelled") >= 6)


def test_a_step_that_raises_ends_its_requests_with_that_error_and_the_engine_goes_on(serving: Serving) -> None:
    other = serving.stream(text_input=PROMPT, stream=True, **LONG)
    other.next()
    bad = serving.stream(input_ids=[40001], stream=True)
    assert "planted failure" in bad.error()
    assert "planted failure" in other.error()
    bad.send(text_input=PROMPT, stream=True)
    assert bad.read()[1]["finish_reason"] == "length"
    bad.close()
    other.close()
    free_again(serving)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_ten_thousand_responses_leave_nothing_behind(serving: Serving) -> None:
    def run(count: int) -> None:
        streams: list[Stream] = [
            serving.stream(text_input=PROMPT, stream=True, sampling_parameters={"max_tokens": count // 8})
            for _ in range(8)
        ]
        for stream in streams:
            assert len(stream.read()[0]) > count // 32
            stream.close()

    run(4000)  # what is allocated once
    pids = serving.stub, serving.facts["server_pid"]
    before = [(resident(pid), files(pid)) for pid in pids]
    run(10_000)
    free_again(serving)
    for pid, (memory, open_files) in zip(pids, before, strict=True):
        assert resident(pid) - memory < 16 << 20
        assert files(pid) <= open_files + 2
