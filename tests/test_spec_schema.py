"""The schema for editors: takes every file that the checks take, and says of every key what it means."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config_gen.sla import quantity
from config_gen.sla.spec import LlmModel, OnnxModel, load, parse, schema

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = Path(__file__).parent / "data" / "sla_example.yaml"
FILES = [EXAMPLE, *sorted((ROOT / "sla").glob("*.yaml"))]
SCHEMA = schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def errors(raw: object) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(raw)]


def test_it_is_a_schema_of_2020_12() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_files_that_are_right_fit_it(path: Path) -> None:
    load(path)
    assert errors(yaml.safe_load(path.read_text())) == []


def test_the_example_says_what_it_says() -> None:
    spec = load(EXAMPLE)
    chat, embed = spec.models["chat"], spec.models["embed"]
    assert isinstance(chat, LlmModel) and isinstance(embed, OnnxModel)
    assert spec.hardware.gpus[0].bytes == 80 * 2**30 and spec.headroom == 0.2
    assert spec.hardware.cores is spec.hardware.memory is None
    assert chat.max_num_seqs is chat.max_num_batched_tokens is chat.kv_cache_memory is chat.swap_space is None
    assert (embed.instances, embed.queue_delay, embed.response_cache) == (None, None, None)


EVERYTHING = """
gapless: 1
headroom: 50%
hardware: {gpus: [{type: A100_80gb, memory: 40GiB}, {type: mine, memory: 24GiB, count: 2}], cores: 8, memory: 64GiB}
tiers: {a: {queue_timeout: null, max_long: 2, long_tokens: 512}}
models:
  chat:
    kind: llm
    source: hf:m
    max_num_seqs: 64
    max_num_batched_tokens: 512
    kv_cache_memory: 2GiB
    swap_space: 0B
  embed:
    kind: onnx
    source: torch:module:factory
    precision: fp16
    accuracy: {metric: "module:callable", min: -2, worst: 0.5}
    calibration: [a.npz, wheel:b]
    evaluation: c.npz
    engine: {compute_capability: ["8.9", "12.0"], workspace: 1GiB, tf32: true}
    instances: 2
    queue_delay: 0ms
    response_cache: {repeats: 30%, size: 1MiB}
"""


def test_all_that_can_be_given_is_read_and_fits_it() -> None:
    spec = parse(EVERYTHING)
    assert errors(yaml.safe_load(EVERYTHING)) == []
    chat, embed = spec.models["chat"], spec.models["embed"]
    assert isinstance(chat, LlmModel) and isinstance(embed, OnnxModel)
    assert [gpu.bytes for gpu in spec.hardware.gpus] == [40 * 2**30, 24 * 2**30]
    assert (spec.headroom, spec.hardware.cores, spec.hardware.memory) == (0.5, 8, 64 * 2**30)
    assert (chat.max_num_seqs, chat.max_num_batched_tokens) == (64, 512)
    assert (chat.kv_cache_memory, chat.swap_space) == (2 * 2**30, 0)
    assert (embed.instances, embed.queue_delay) == (2, 0)
    assert embed.response_cache is not None
    assert (embed.response_cache.repeats, embed.response_cache.size) == (0.3, 2**20)


def test_a_mistake_in_any_place_is_seen() -> None:
    """Every value of the file in turn becomes one that is nothing anywhere."""
    raw = yaml.safe_load(EXAMPLE.read_text())
    found = list(places(raw))
    assert len(found) > 50
    for *steps, last in found:
        wrong = copy.deepcopy(raw)
        at = wrong
        for step in steps:
            at = at[step]
        at[last] = {"nothing": -1.5}
        assert errors(wrong), (*steps, last)


def places(node: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, *path, key)


def test_every_key_is_described_and_no_default_is_a_number_for_a_quantity() -> None:
    sections = {"": SCHEMA, **SCHEMA["$defs"]}
    assert len(sections) > 12
    for name, section in sections.items():
        assert section["additionalProperties"] is False and section["description"]
        for key, field in section["properties"].items():
            assert len(field.get("description", "")) > 5, (name, key)
            for written in [*field.get("examples", []), *([field["default"]] if "default" in field else [])]:
                assert jsonschema.Draft202012Validator({"$defs": SCHEMA["$defs"], **field}).is_valid(written), (
                    name,
                    key,
                )
    assert SCHEMA["$defs"]["Hardware"]["properties"]["sharing"]["default"] == "auto"
    assert "default" not in SCHEMA["properties"]["headroom"] and "default" not in SCHEMA["properties"]["hardware"]


READERS: dict[str, Callable[[object], object]] = {
    "Duration": quantity.duration,
    "Rate": quantity.rate,
    "Share": quantity.share,
    "Memory": quantity.memory,
    "Percentile": quantity.percentile,
    "Delay": lambda text: quantity.duration(text, least=0),
    "MemoryOrNone": lambda text: quantity.memory(text, least=0),
}
FIELDS = {
    "Duration": SCHEMA["$defs"]["Tier"]["properties"]["queue_timeout"]["anyOf"][0],
    "Rate": SCHEMA["$defs"]["OnnxTraffic"]["properties"]["rate"],
    "Share": SCHEMA["properties"]["headroom"],
    "Memory": SCHEMA["$defs"]["LlmModel"]["properties"]["kv_cache_memory"]["anyOf"][0],
    "Percentile": SCHEMA["$defs"]["Targets"]["properties"]["at"],
    "Delay": SCHEMA["$defs"]["OnnxModel"]["properties"]["queue_delay"]["anyOf"][0],
    "MemoryOrNone": SCHEMA["$defs"]["LlmModel"]["properties"]["swap_space"]["anyOf"][0],
}
UNITS = [
    "",
    "ns",
    "us",
    "ms",
    "s",
    "m",
    "min",
    "h",
    "/s",
    "/m",
    "/min",
    "/h",
    "%",
    "B",
    "KiB",
    "GiB",
    "TiB",
    "kB",
    "GB",
]
NUMBERS = st.from_regex(r"[p ]?[ 0-9]{0,3}\.?[0-9]{0,3} ?", fullmatch=True)


@given(st.sampled_from(sorted(READERS)), NUMBERS, st.sampled_from(UNITS))
def test_it_is_never_stricter_than_the_checks_and_hardly_laxer(kind: str, number: str, unit: str) -> None:
    text = number + unit
    fits = jsonschema.Draft202012Validator(FIELDS[kind]).is_valid(text)
    try:
        READERS[kind](text)
    except quantity.QuantityError as refused:
        assert not fits or re.search("at most|> 0|at least", str(refused)), text  # of what rounds to nothing
    else:
        assert fits, text


@pytest.mark.parametrize(
    ("gpu", "fits"),
    [
        ({"type": "a100-80gb"}, True),
        ({"type": "H100_SXM"}, True),
        ({"type": "h300"}, False),
        ({"type": "h300", "memory": "24GiB"}, True),
        ({"type": "h300", "memory": None}, False),
        ({"type": "xa100"}, False),
    ],
)
def test_types_of_gpus_are_known_or_bring_their_memory(gpu: dict[str, Any], fits: bool) -> None:
    raw = yaml.safe_load(EXAMPLE.read_text())
    raw["hardware"] = {"gpus": [gpu]}
    assert (errors(raw) == []) == fits
