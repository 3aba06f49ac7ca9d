"""The section of a language model: its source, weights, targets, traffic, and what a user pins of its limits.

Must not know how a file is read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from config_gen.sla.fields import Count, LlmSource, Memory, MemoryOrNone, Rate, Section
from config_gen.sla.sections import Lengths, Targets
from decode.config import MOST_SEQS


class LlmTraffic(Section):
    """What one tier sends."""

    rate: Rate
    """Requests per second, a Poisson process."""
    prompt: Lengths
    """Of a request's own text."""
    output: Lengths
    """Of the answer."""
    shared_prefix: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0
    """Tokens of a common system prompt, which half of the requests have before their own."""


def _fits_the_model(traffic: LlmTraffic, info: ValidationInfo) -> LlmTraffic:
    """Longer requests are cut to what the model takes: where half of them would be, this is another load."""
    most = info.data.get("max_model_len")
    needed = traffic.shared_prefix + traffic.prompt.median + traffic.output.median
    if most is not None and needed > most:
        raise ValueError(f"{needed} tokens of shared_prefix, prompt and output at the median; max_model_len is {most}")
    return traffic


class LlmModel(Section):
    """A language model. What is not pinned of its limits is planned."""

    kind: Literal["llm"]
    """A language model: prompts in, tokens out one by one."""
    source: LlmSource
    """Where the weights are."""
    weights: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    """What they are computed in."""
    max_model_len: Count = 4096
    """Most tokens of a request, prompt and answer together."""
    max_num_seqs: Annotated[int, Field(strict=True, ge=1, le=MOST_SEQS)] | None = None
    """Requests that run at once."""
    max_num_batched_tokens: Annotated[int, Field(strict=True, ge=1, le=10**6)] | None = None
    """Tokens of one step."""
    kv_cache_memory: Memory | None = None
    """For the KV cache: of a card, or of the host where there is none."""
    swap_space: MemoryOrNone | None = None
    """Of the host, for the KV cache of requests that had to make room; 0B for none."""
    targets: dict[str, Targets] = Field(default_factory=dict)
    """What is promised, by tier."""
    traffic: dict[str, Annotated[LlmTraffic, AfterValidator(_fits_the_model)]] = Field(default_factory=dict)
    """What is sent, by tier."""

    @field_validator("max_num_batched_tokens")
    @classmethod
    def _holds_a_token_of_each(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        sequences = info.data.get("max_num_seqs")
        if tokens is not None and sequences is not None and tokens < sequences:
            raise ValueError(f"{tokens} is not allowed; at least max_num_seqs ({sequences})")
        return tokens
