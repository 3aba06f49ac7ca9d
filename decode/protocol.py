"""The wire form of a request and of an answer: raw inputs in, checked values out, errors of one line.

Names and defaults are those of Triton's vLLM backend, so that its clients work. Must not know Triton, tensors or the
engine: bytes, strings and JSON only. Every refusal is an InvalidRequest that names the field and what is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from decode.plan import Logprobs
from decode.types import InvalidRequest, SamplingParams, Usage

MAX_TEXT = 4 << 20  # bytes of text_input or messages; tokenizing more would keep other requests waiting
SAMPLING = {f.name: f for f in fields(SamplingParams)}
_LISTS = ("stop", "stop_token_ids")
# What front ends add to a request's parameters by themselves; none of it concerns sampling.
_IGNORED = {"id"}


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as the transport gives it; None = the client did not send it. `parameters` is a JSON object."""

    text_input: bytes | None = None
    messages: bytes | None = None
    input_ids: tuple[int, ...] | None = None
    stream: bool | None = None
    sampling_parameters: bytes | None = None
    exclude_input_in_output: bool | None = None
    parameters: str = "{}"


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request; exactly one of `text`, `messages` and `tokens` is set. `echo` comes before the answer."""

    text: str | None
    messages: list[Any] | None
    tokens: tuple[int, ...] | None
    sampling: SamplingParams
    tier: str | None
    stream: bool
    echo: str = ""


def parse(raw: RawRequest) -> Call:
    """Check a request. Raises InvalidRequest."""
    parameters = _object("parameters", raw.parameters)
    tier = parameters.pop("tier", None)
    if tier is not None and not isinstance(tier, str):
        raise InvalidRequest(f"tier: {_short(tier)} is not allowed; a string")
    text = _text("text_input", raw.text_input) if raw.text_input is not None else None
    messages = _messages(_text("messages", raw.messages)) if raw.messages is not None else None
    given = [
        name
        for name, there in (("text_input", text), ("messages", messages), ("input_ids", raw.input_ids is not None))
        if there
    ]
    if len(given) != 1:
        if not given and text is not None:
            raise InvalidRequest("text_input: the prompt is empty; give text_input, messages or input_ids")
        got = " and ".join(given) or "none of them"
        raise InvalidRequest(f"give exactly one of text_input, messages and input_ids; got {got}")
    stream = bool(raw.stream)
    return Call(
        text=text if given == ["text_input"] else None,
        messages=messages,
        tokens=raw.input_ids,
        sampling=_sampling(raw, parameters),
        tier=tier,
        stream=stream,
        echo=_echo(raw, text, stream),
    )


def usage_json(usage: Usage) -> str:
    """`{"prompt_tokens": 12, "cached_tokens": 0, "output_tokens": 40}`."""
    return json.dumps({name: getattr(usage, name) for name in ("prompt_tokens", "cached_tokens", "output_tokens")})


def logprobs_json(tokens: Sequence[int], logprobs: Sequence[Logprobs], text_of: Callable[[int], str]) -> str:
    """One object per token, `{id: {"logprob", "rank", "decoded_token"}}`: the drawn token and the best ones.

    The rank of a drawn token that is not among the best ones is not known and therefore null.
    """
    rows = []
    for token, found in zip(tokens, logprobs, strict=True):
        ranks: dict[int, tuple[float, int | None]] = {token: (found.logprob, None)}
        ranks.update({best: (value, place) for place, (best, value) in enumerate(found.top, 1)})
        rows.append(
            {
                str(i): {"logprob": value, "rank": rank, "decoded_token": text_of(i)}
                for i, (value, rank) in ranks.items()
            }
        )
    return json.dumps(rows)


def _echo(raw: RawRequest, text: str | None, stream: bool) -> str:
    """The prompt before the answer, as the vLLM backend has it: by default only when not streaming, and only text."""
    if raw.exclude_input_in_output is None:
        return text or "" if not stream else ""
    if raw.exclude_input_in_output:
        return ""
    if stream:
        raise InvalidRequest("exclude_input_in_output: false is not allowed with stream; leave it out or say true")
    if not text:
        raise InvalidRequest("exclude_input_in_output: false is allowed with text_input only")
    return text


def _sampling(raw: RawRequest, parameters: dict[str, Any]) -> SamplingParams:
    """From the request's parameters, as flat HTTP fields arrive, overridden by the tensor sampling_parameters."""
    for name in [n for n in parameters if n in _IGNORED or "-" in n]:  # forwarded HTTP headers have dashes
        del parameters[name]
    if raw.sampling_parameters is not None:
        text = _text("sampling_parameters", raw.sampling_parameters)
        parameters |= _object("sampling_parameters", text) if text else {}
    unknown = sorted(set(parameters) - set(SAMPLING))
    if unknown:
        allowed = ", ".join(sorted([*SAMPLING, "tier"]))
        name = unknown[0] if unknown[0].isidentifier() and len(unknown[0]) <= 60 else _short(unknown[0])
        raise InvalidRequest(f"{name}: unknown sampling parameter; allowed are {allowed}")
    return SamplingParams(**{name: _value(name, value) for name, value in parameters.items() if value is not None})


def _value(name: str, value: Any) -> Any:
    """A sampling value; numbers and flags may come as strings, since existing clients send them so."""
    if name in _LISTS:
        items = [value] if isinstance(value, (str, int)) else value
        if not isinstance(items, list):
            raise InvalidRequest(f"{name}: {_short(value)} is not allowed; a list")
        return tuple(items)
    default = SAMPLING[name].default
    real = isinstance(default, float)
    if isinstance(value, str):
        if name == "ignore_eos":
            return {"true": True, "false": False}.get(value.lower(), value)
        try:
            value = float(value) if real else int(value)
        except ValueError:
            raise InvalidRequest(f"{name}: {_short(value)} is not allowed; a number") from None
    if isinstance(value, float) and not real and value.is_integer():
        return int(value)
    return value


def _messages(text: str) -> list[Any]:
    """A conversation: `[{"role": "user", "content": "..."}]`; what is in the list is for the chat template to judge."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"messages: not valid JSON: {error}") from None
    if not isinstance(found, list):
        raise InvalidRequest(f"messages: {_short(found)} is not allowed; a list of objects with role and content")
    return found


def _object(field: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{field}: {_short(found)} is not allowed; a JSON object")
    return found


def _text(field: str, data: bytes) -> str:
    if len(data) > MAX_TEXT:
        raise InvalidRequest(f"{field}: {len(data)} bytes; at most {MAX_TEXT} are taken")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field}: not valid UTF-8 at byte {error.start}") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
