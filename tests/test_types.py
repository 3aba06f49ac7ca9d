"""What a client may ask: wrong values are refused by name, and no value that is taken can break a step for others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decode.plan import Draw
from decode.sampler import Sampler
from decode.types import InvalidRequest, SamplingParams

EXTREMES: list[dict[str, Any]] = [
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100},
    {"presence_penalty": 2, "frequency_penalty": 2},
    {"presence_penalty": -2, "frequency_penalty": -2},
    {"temperature": 1e308},
    {"temperature": 5e-324},
    {"top_k": 10**30},
    {"top_k": -1},
    {"top_p": 5e-324},
    {"min_p": 1},
    {"min_p": 5e-324},
    {"stop_token_ids": tuple(range(256)), "min_tokens": 1},
    {"stop_token_ids": (10**30,), "min_tokens": 1},
    {"seed": 2**63 - 1},
    {"logprobs": 20},
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=lambda e: ",".join(e))
def test_a_request_at_the_edge_of_what_is_allowed_can_be_drawn(extreme: dict[str, Any]) -> None:
    """A row that cannot be drawn fails the whole step: one such request would end everybody's."""
    params = SamplingParams(**{"seed": 0, "max_tokens": 5, **extreme})
    generator = torch.Generator().manual_seed(1)
    for scale in (0.0, 1.0, 100.0):
        logits = torch.randn(2, 300, generator=generator) * scale
        draw = Draw(params, 4000, tuple(sorted(params.stop_token_ids)), tuple(range(300)), (7,) * 3000)
        tokens, _ = Sampler(300, "cpu").draw(logits, [draw, Draw(SamplingParams(seed=1), 5)])
        assert all(0 <= token < 300 for token in tokens)
        assert tokens[0] not in draw.banned


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"max_tokens": 0}, "max_tokens: 0 is not allowed; an integer >= 1"),
        ({"max_tokens": True}, "max_tokens: True is not allowed; an integer >= 1"),
        ({"max_tokens": 2.0}, "max_tokens: 2.0 is not allowed; an integer >= 1"),
        ({"min_tokens": 17}, "min_tokens: 17 is not allowed; an integer from 0 to max_tokens (16)"),
        ({"min_tokens": -1}, "min_tokens: -1 is not allowed; an integer from 0 to max_tokens (16)"),
        ({"temperature": -0.1}, "temperature: -0.1 is not allowed; a number >= 0"),
        ({"temperature": float("nan")}, "temperature: nan is not allowed; a number >= 0"),
        ({"temperature": float("inf")}, "temperature: inf is not allowed; a number >= 0"),
        ({"temperature": 10**400}, f"temperature: 1{'0' * 76}... is not allowed; a number >= 0"),
        ({"temperature": "1"}, "temperature: '1' is not allowed; a number >= 0"),
        ({"top_k": -2}, "top_k: -2 is not allowed; an integer >= 0 (0 or -1 = all)"),
        ({"top_p": 0.0}, "top_p: 0.0 is not allowed; a number in (0, 1]"),
        ({"top_p": 1.1}, "top_p: 1.1 is not allowed; a number in (0, 1]"),
        ({"min_p": -0.1}, "min_p: -0.1 is not allowed; a number in [0, 1]"),
        ({"min_p": 1.1}, "min_p: 1.1 is not allowed; a number in [0, 1]"),
        ({"repetition_penalty": 1e-38}, "repetition_penalty: 1e-38 is not allowed; a number from 0.01 to 100"),
        ({"repetition_penalty": 101}, "repetition_penalty: 101 is not allowed; a number from 0.01 to 100"),
        ({"presence_penalty": 2.1}, "presence_penalty: 2.1 is not allowed; a number from -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty: -2.1 is not allowed; a number from -2 to 2"),
        ({"seed": -1}, "seed: -1 is not allowed; an integer from 0 to 9223372036854775807"),
        ({"seed": 2**63}, "seed: 9223372036854775808 is not allowed; an integer from 0 to 9223372036854775807"),
        ({"stop": ("a", "")}, "stop: ('a', '') is not allowed; at most 32 strings of 1 to 256 characters"),
        ({"stop": (1,)}, "stop: (1,) is not allowed; at most 32 strings of 1 to 256 characters"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids: (-1,) is not allowed; at most 256 integers >= 0"),
        ({"stop_token_ids": ("1",)}, "stop_token_ids: ('1',) is not allowed; at most 256 integers >= 0"),
        ({"ignore_eos": 1}, "ignore_eos: 1 is not allowed; true or false"),
        ({"logprobs": 21}, "logprobs: 21 is not allowed; an integer from 0 to 20"),
        ({"logprobs": -1}, "logprobs: -1 is not allowed; an integer from 0 to 20"),
    ],
)
def test_what_is_refused_and_what_the_message_says(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**bad)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "big", [{"stop": ("a" * 257,)}, {"stop": ("a",) * 33}, {"stop_token_ids": tuple(range(257))}], ids=str
)
def test_what_would_cost_memory_and_time_without_bound_is_refused(big: dict[str, Any]) -> None:
    """A stop string of 4 MB once cost a gigabyte of matcher, before the request was even queued."""
    with pytest.raises(InvalidRequest, match="is not allowed; at most") as caught:
        SamplingParams(**big)
    assert len(str(caught.value)) < 200  # nor does it come back in the message


@pytest.mark.parametrize(
    ("changed", "penalized"),
    [
        ({}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 1}, True),
        ({"frequency_penalty": 1}, True),
    ],
)
def test_history_is_needed_only_with_a_penalty(changed: dict[str, Any], penalized: bool) -> None:
    assert SamplingParams(**changed).penalized is penalized
