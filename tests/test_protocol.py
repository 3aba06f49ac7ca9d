"""The wire form: defaults as in Triton's vLLM backend, what is accepted loosely, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decode.plan import Logprobs
from decode.protocol import RawRequest, logprobs_json, parse, usage_json
from decode.types import InvalidRequest, SamplingParams, Usage


def raw(**values: Any) -> RawRequest:
    return RawRequest(**{"text_input": b"hi", **values})


def test_defaults() -> None:
    call = parse(raw())
    assert (call.text, call.messages, call.tokens, call.tier) == ("hi", None, None, None)
    assert call.sampling == SamplingParams(max_tokens=16)
    assert not call.stream and call.echo == "hi"


@pytest.mark.parametrize(
    ("stream", "exclude", "echo"),
    [
        (None, None, "hi"),
        (False, None, "hi"),
        (True, None, ""),
        (True, True, ""),
        (False, True, ""),
        (None, False, "hi"),
    ],
)
def test_the_prompt_is_echoed_as_in_the_vllm_backend(stream: bool | None, exclude: bool | None, echo: str) -> None:
    assert parse(raw(stream=stream, exclude_input_in_output=exclude)).echo == echo


def test_messages_and_token_ids_are_never_echoed() -> None:
    messages = b'[{"role": "user", "content": "hi"}]'
    assert parse(raw(text_input=None, messages=messages)).echo == ""
    assert parse(raw(text_input=b"", messages=messages)).messages == json.loads(messages)
    assert parse(raw(text_input=None, input_ids=(1, 2))).tokens == (1, 2)


def test_the_tensor_overrides_the_parameters_of_the_request() -> None:
    call = parse(
        raw(parameters='{"max_tokens": 3, "top_k": 4, "tier": "api"}', sampling_parameters=b'{"max_tokens": 5}')
    )
    assert (call.sampling.max_tokens, call.sampling.top_k, call.tier) == (5, 4, "api")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"temperature": "0.5"}, {"temperature": 0.5}),
        ({"temperature": 1}, {"temperature": 1}),
        ({"max_tokens": "7"}, {"max_tokens": 7}),
        ({"max_tokens": 7.0}, {"max_tokens": 7}),
        ({"max_tokens": None}, {}),
        ({"ignore_eos": "True"}, {"ignore_eos": True}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        ({"stop": []}, {}),
        ({"stop_token_ids": 5}, {"stop_token_ids": (5,)}),
        ({"seed": "12"}, {"seed": 12}),
        ({"logprobs": 2}, {"logprobs": 2}),
    ],
)
def test_values_that_existing_clients_send(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert parse(raw(sampling_parameters=json.dumps(given).encode())).sampling == SamplingParams(**meant)


def test_what_front_ends_add_is_no_sampling_parameter() -> None:
    assert parse(raw(parameters='{"id": "7", "x-request-id": "a"}')).sampling == SamplingParams()


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"text_input": b"a\xff"}, "text_input: not valid UTF-8 at byte 1"),
        ({"text_input": b""}, "text_input: the prompt is empty; give text_input, messages or input_ids"),
        ({"text_input": None}, "give exactly one of text_input, messages and input_ids; got none of them"),
        ({"input_ids": (1,)}, "give exactly one of text_input, messages and input_ids; got text_input and input_ids"),
        ({"text_input": None, "messages": b"7"}, "messages: 7 is not allowed; a list of objects with role and content"),
        ({"parameters": '{"tier": 3}'}, "tier: 3 is not allowed; a string"),
        ({"sampling_parameters": b'{"temperature": NaN}'}, "temperature: nan is not allowed; a number >= 0"),
        ({"sampling_parameters": b'{"max_tokens": -1}'}, "max_tokens: -1 is not allowed; an integer >= 1"),
        ({"sampling_parameters": b'{"top_p": "x"}'}, "top_p: 'x' is not allowed; a number"),
        (
            {"stream": True, "exclude_input_in_output": False},
            "exclude_input_in_output: false is not allowed with stream",
        ),
    ],
)
def test_errors_are_one_line_and_name_the_field(values: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(raw(**values))
    assert str(caught.value).startswith(error) and "\n" not in str(caught.value)


def test_an_unknown_parameter_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"max_token: unknown.*frequency_penalty.*max_tokens.*tier"):
        parse(raw(parameters='{"max_token": 3}'))


def test_usage() -> None:
    assert json.loads(usage_json(Usage(5, 2, 3))) == {"prompt_tokens": 5, "cached_tokens": 2, "output_tokens": 3}


def test_logprobs_have_the_drawn_token_first_and_ranks_where_known() -> None:
    found = [Logprobs(-2.5, ((7, -0.1), (8, -1.0))), Logprobs(-0.1, ((7, -0.1),))]
    rows = json.loads(logprobs_json((9, 7), found, lambda token: f"<{token}>"))
    assert rows[0] == {
        "9": {"logprob": -2.5, "rank": None, "decoded_token": "<9>"},
        "7": {"logprob": -0.1, "rank": 1, "decoded_token": "<7>"},
        "8": {"logprob": -1.0, "rank": 2, "decoded_token": "<8>"},
    }
    assert rows[1] == {"7": {"logprob": -0.1, "rank": 1, "decoded_token": "<7>"}}
