"""More than a hundred wrong requests to a real Triton, each answered with one clear error while good ones flow."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repositories import scripted_repository
from serving import Serving, serve, wait_for

PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def serving(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("wrong")
    with serve(scripted_repository(folder / "repository", smollm2_dir, 0.002), folder) as serving:
        yield serving


@pytest.fixture(scope="module")
def good_traffic(serving: Serving) -> Iterator[list[str]]:
    """Good requests one after another for as long as the wrong ones are sent; what each of them got."""
    answers: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            status, text = serving.post("generate", {"text_input": PROMPT, "max_tokens": 20})
            answers.append(json.loads(text)["text_output"] if status == 200 else text)

    thread = threading.Thread(target=ask)
    thread.start()
    yield answers
    stop.set()
    thread.join()


def say(**message: Any) -> str:
    return json.dumps([message])


FLAT: list[tuple[dict[str, Any], str]] = [  # fields beside a good prompt, and what the error must name
    *[({"max_tokens": v}, "max_tokens") for v in (-1, 0, "many", 1.5, True, "-3", "", 1e400, "nan")],
    *[({"temperature": v}, "temperature") for v in (-0.1, "hot", "nan", "inf", True, "")],
    *[({"top_p": v}, "top_p") for v in (0, 1.1, -1, "x", "nan")],
    *[({"top_k": v}, "top_k") for v in (-2, "few", 2.5)],
    *[({"min_p": v}, "min_p") for v in (-0.5, 2, "nan")],
    *[({"min_tokens": v}, "min_tokens") for v in (-1, 10**6)],
    *[({"repetition_penalty": v}, "repetition_penalty") for v in (0, -1, "nan")],
    *[({"presence_penalty": v}, "presence_penalty") for v in (-3, 3)],
    *[({"frequency_penalty": v}, "frequency_penalty") for v in (-3, 3)],
    *[({"seed": v}, "seed") for v in (-1, "x", 1.5)],
    *[({"logprobs": v}, "logprobs") for v in (-1, 21, "all")],
    *[({"ignore_eos": v}, "ignore_eos") for v in ("maybe", 2)],
    *[({"stop": v}, "stop") for v in ("", 5)],
    *[({"stop_token_ids": v}, "stop_token_ids") for v in ("x", -1)],
    *[({"tier": v}, "tier") for v in ("gold", "", 5)],
    ({"tier": "gold"}, "interactive, batch"),
    *[({name: 1}, f"{name}: unknown") for name in ("max_token", "beam_width", "n", "MAX_TOKENS", "Temperature")],
    ({"beam_width": 2}, "temperature"),
    *[({"sampling_parameters": v}, "sampling_parameters") for v in ("{", "[]", "5", '"x"', "{'a': 1}", "nul")],
    *[
        ({"sampling_parameters": json.dumps(v)}, next(iter(v)))
        for v in (
            {"temperature": math.nan},
            {"temperature": math.inf},
            {"max_tokens": -5},
            {"max_tokens": [1]},
            {"max_tokens": {}},
            {"stop": [""]},
            {"stop": [1]},
            {"stop": {"a": 1}},
            {"stop_token_ids": ["a"]},
            {"stop_token_ids": [-1]},
            {"top_p": None, "unheard_of": 1},
            {"unheard_of": 1},
        )
        if next(iter(v)) != "top_p"
    ],
    ({"sampling_parameters": "[" * 100_000}, "sampling_parameters"),
    ({"exclude_input_in_output": False, "stream": True}, "exclude_input_in_output"),
    ({"messages": say(role="user", content="hi")}, "exactly one"),
    ({"input_ids": [1, 2]}, "exactly one"),
]
WHOLE: list[tuple[dict[str, Any] | bytes, str]] = [  # whole bodies
    ({}, "none of them"),
    ({"text_input": ""}, "text_input"),
    ({"text_input": "", "messages": ""}, "empty"),
    ({"text_input": "word " * 3000}, "2047"),
    ({"text_input": "x" * (5 << 20)}, "text_input"),
    ({"text_input": 5}, "JSON"),
    ({"text_input": ["a", "b"]}, "text_input"),
    ({"text_input": None}, "JSON"),
    ({"text_input": "a", "stream": "yes"}, "JSON"),
    ({"input_ids": [49152]}, "49151"),
    ({"input_ids": [-1]}, "49151"),
    ({"input_ids": ["a"]}, "JSON"),
    ({"input_ids": [1] * 2048}, "2047"),
    ({"input_ids": []}, "empty"),
    *[
        ({"messages": v}, "messages")
        for v in (
            "[",
            "5",
            "{}",
            "[1]",
            '["hi"]',
            say(role="user"),
            say(content="hi"),
            say(role=1, content="hi"),
            say(role="user", content=5),
            say(role="user", content=[{"type": "image"}]),
            say(role="user", content=None),
            "[" * 100_000,
        )
    ],
    ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "surrogate"),
    ({"messages": "[]"}, "give"),
    ({"messages": [{"role": "user", "content": "hi"}]}, "JSON"),
    ({"messages": say(role="user", content="hi"), "exclude_input_in_output": False}, "exclude_input_in_output"),
    (b'{"text_input": "a\xff"}', "UTF-8"),
    (b'{"text_input": "a", "tier": "\xff"}', "UTF-8"),
    (b'{"text_input": "a", "id": "\xff"}', "UTF-8"),
    ({"text_input": "a", "sampling_parameters": '{"\\ud800": 1}'}, "unknown sampling parameter"),
    ({"text_input": "the quick brown " * 200_000}, "2047"),
    (b'{"text_input": "a"', "JSON"),
    (b"", "JSON"),
    (b"not json", "JSON"),
    (b'{"text_input": "a", "temperature": NaN}', "temperature"),
]


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_wrong_http_requests_get_one_clear_error(serving: Serving, good_traffic: list[str], path: str) -> None:
    problems = []
    cases = [({"text_input": PROMPT, **fields}, word) for fields, word in FLAT] + WHOLE
    assert len(cases) >= 100
    for body, word in cases:
        status, text = serving.post(path, body)
        message = text.removeprefix("data: ").strip()
        if status < 400 or "\n" in message or word not in json.loads(message)["error"]:
            problems.append((str(body)[:80], word, status, text[:200]))
    assert not problems, "\n".join(map(str, problems))


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ({"text_input": b"\xff\xfe"}, "UTF-8 at byte 0"),
        ({"text_input": b"good then \xc3"}, "UTF-8 at byte 10"),
        ({"messages": b"\xff"}, "UTF-8"),
        ({"sampling_parameters": b"\xff", "text_input": PROMPT}, "UTF-8"),
        ({"sampling_parameters": '{"temperature": NaN}', "text_input": PROMPT}, "temperature"),
        ({"sampling_parameters": '{"max_tokens": -1}', "text_input": PROMPT}, "max_tokens"),
        ({"text_input": b""}, "empty"),
        ({}, "none of them"),
        ({"stream": True}, "none of them"),
        ({"input_ids": [60000]}, "49151"),
        ({"input_ids": np.zeros(5_000_000, np.int64)}, "5000000 tokens; at most max_model_len - 1 = 2047"),
        ({"input_ids": np.zeros(0, np.int64)}, "empty"),
        ({"text_input": np.array([1.0], np.float32)}, "data-type"),
        ({"text_input": np.array([b"a", b"b"], np.object_)}, "shape"),
        ({"prompt": "hi"}, "prompt"),
    ],
)
def test_wrong_grpc_requests_get_one_clear_error(
    serving: Serving, good_traffic: list[str], inputs: dict[str, Any], word: str
) -> None:
    stream = serving.stream(**inputs)
    assert word in stream.error()
    stream.send(text_input=PROMPT, stream=True)  # the same stream still works
    assert stream.read()[1]["finish_reason"] == "length"
    stream.close()


def test_good_requests_kept_flowing(serving: Serving, good_traffic: list[str]) -> None:
    seen = len(good_traffic)
    wait_for(lambda: len(good_traffic) > seen + 2)
    assert set(good_traffic) == {serving.generate(text_input=PROMPT, max_tokens=20)["text_output"]}


@pytest.mark.parametrize("fields", [{"tier": "x" * 400_000}, {"sampling_parameters": json.dumps({"k" * 1_000_000: 1})}])
def test_an_error_does_not_send_back_what_it_was_sent(serving: Serving, fields: dict[str, Any]) -> None:
    status, text = serving.post("generate", {"text_input": PROMPT, **fields})
    assert status >= 400 and len(text) < 1000
