"""A planned model as Triton's configuration: against expectations written by hand, and against any plan there could be.

Oracle of the text: Triton's own compiled proto, which reads it again.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from plans import VECTOR, chat, embed, models

from config_gen.batching import Batching, QueuePolicy
from config_gen.plan import Knob, ModelPlan, Tensor, WarmUp
from config_gen.triton.config_text import WIDTH, commented
from config_gen.triton.llm_tensors import INPUTS, OUTPUTS
from config_gen.triton.model_config import parse
from config_gen.triton.triton_config import config
from decode.protocol import RawRequest

MS, SECOND = 10**6, 10**9
IO = """
name: "embed" backend: "python"
input { name: "text" data_type: TYPE_STRING dims: 1 } output { name: "vector" data_type: TYPE_FP32 dims: 384 }
"""
CPU = "instance_group { count: 1 kind: KIND_CPU }"
LEVELS = (
    QueuePolicy(timeout=2 * SECOND, max_queue=64),
    QueuePolicy(),
    QueuePolicy(timeout=1, action="delay"),
)
CASES: list[tuple[ModelPlan, str]] = [
    (embed(batching=Batching(1)), "max_batch_size: 1 dynamic_batching { } " + CPU),
    (embed(batching=Batching(16, delay=2 * MS)), CPU + "max_batch_size: 16 dynamic_batching {"
     " max_queue_delay_microseconds: 2000 }"),
    (embed(batching=Batching(8, delay=999)), "max_batch_size: 8 dynamic_batching { } " + CPU),
    (embed(batching=Batching(8, preferred=(4, 8), instances=3)), "max_batch_size: 8 dynamic_batching {"
     " preferred_batch_size: [4, 8] } instance_group { count: 3 kind: KIND_CPU }"),
    (embed(batching=Batching(8, levels=LEVELS, default_level=2)), CPU + "max_batch_size: 8 dynamic_batching {"
     " priority_levels: 3 default_priority_level: 2"
     " priority_queue_policy { key: 1 value { default_timeout_microseconds: 2000000 max_queue_size: 64 } }"
     " priority_queue_policy { key: 2 value { } }"
     " priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }"),
    (embed(batching=Batching(8, default_policy=QueuePolicy(5 * MS, "reject", 32))), CPU + "max_batch_size: 8"
     " dynamic_batching { default_queue_policy { default_timeout_microseconds: 5000 max_queue_size: 32 } }"),
    (embed(gpus=(0, 2), batching=Batching(8, instances=2), rate_limit={"card": 1}), "max_batch_size: 8"
     " dynamic_batching { } instance_group { count: 2 kind: KIND_GPU gpus: 0 gpus: 2"
     " rate_limiter { resources { name: 'card' count: 1 } } }"),
    (embed(response_cache=True, warm_up=WarmUp(4, (Tensor("pixels", "TYPE_UINT8", (2, 3)),))), CPU
     + "max_batch_size: 8 dynamic_batching { } response_cache { enable: true } model_warmup { name: 'zeros'"
     " batch_size: 4 inputs { key: 'pixels' value { data_type: TYPE_UINT8 dims: [2, 3] zero_data: true } } }"),
    (embed(batching=None), CPU + "max_batch_size: 0"),
    (embed(parameters={"seconds": "0.1"}), CPU + "max_batch_size: 8 dynamic_batching { }"
     " parameters { key: 'seconds' value { string_value: '0.1' } }"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "expected"), CASES)
def test_every_setting_of_a_model_is_the_field_that_triton_has_for_it(model: ModelPlan, expected: str) -> None:
    assert config(model) == parse(IO + expected)


def test_an_llm_is_decoupled_never_batched_by_triton_and_one_instance() -> None:
    made = config(chat(gpus=(1,), parameters={"device": "cuda", "tiers": '{"a": {"weight": 8}}'}))
    assert (made.max_batch_size, made.HasField("dynamic_batching")) == (0, False)
    assert made.model_transaction_policy.decoupled
    assert [(group.count, list(group.gpus)) for group in made.instance_group] == [(1, [1])]
    assert {key: value.string_value for key, value in made.parameters.items()} == {
        "device": "cuda",
        "tiers": '{"a": {"weight": 8}}',
    }
    assert [(i.name, i.optional, list(i.dims)) for i in made.input][2] == ("input_ids", True, [-1])
    assert [o.name for o in made.output] == ["text_output", "finish_reason", "usage", "logprobs"]


def test_the_inputs_of_an_llm_are_those_that_its_protocol_reads() -> None:
    assert {tensor.name for tensor in INPUTS} == {field.name for field in fields(RawRequest)} - {"parameters"}
    assert all(tensor.optional for tensor in INPUTS) and not any(tensor.optional for tensor in OUTPUTS)


def test_a_reason_stands_above_its_field_and_one_without_a_field_at_the_top() -> None:
    knobs = (
        Knob("max_batch_size", "16", "the knee"),
        Knob("dynamic_batching.max_queue_delay_microseconds", "0", "nothing to wait for"),
        Knob("dynamic_batching.priority_levels", "", "left out, they stall"),
        Knob("instance_group.count", "2", "one for\neach core"),
        Knob("parameters.b", "2", "so it is"),
    )
    model = embed(batching=Batching(16, instances=2), parameters={"a": "1", "b": "2"}, knobs=knobs)
    assert commented(config(model), knobs).splitlines() == [
        "# dynamic_batching.priority_levels: left out, they stall",
        "",
        'name: "embed"',
        'backend: "python"',
        "",
        "# the knee",
        "max_batch_size: 16",
        "",
        'input { name: "text" data_type: TYPE_STRING dims: [1] }',
        'output { name: "vector" data_type: TYPE_FP32 dims: [384] }',
        "",
        "instance_group {",
        "  # one for each core",
        "  count: 2",
        "  kind: KIND_CPU",
        "}",
        "",
        "dynamic_batching {",
        "  # nothing to wait for",
        "  max_queue_delay_microseconds: 0",
        "}",
        "",
        'parameters { key: "a" value { string_value: "1" } }',
        "# so it is",
        'parameters { key: "b" value { string_value: "2" } }',
    ]


def test_a_reason_of_one_priority_level_stands_in_its_entry() -> None:
    knobs = (Knob("dynamic_batching.priority_queue_policy.2.max_queue_size", "9", "as declared"),)
    model = embed(batching=Batching(8, levels=(QueuePolicy(), QueuePolicy(max_queue=9))), knobs=knobs)
    lines = commented(config(model), knobs).splitlines()
    assert lines[lines.index("      # as declared") + 1] == "      max_queue_size: 9"
    assert lines[lines.index("      # as declared") - 2] == "    key: 2"


@settings(max_examples=400, deadline=None)
@given(models)
def test_whatever_the_reasons_say_what_is_read_is_what_was_planned(model: ModelPlan) -> None:
    made = config(model)
    text = commented(made, model.knobs)
    assert parse(text) == made
    bare = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert parse("\n".join(bare)) == made  # no reason is read as a field
    assert all(c.isprintable() or c == "\n" for c in text)  # a NUL ends a comment, and the file, for Triton's parser
    for line in (line for line in text.splitlines() if line.lstrip().startswith("#")):
        assert len(line) <= WIDTH


@given(models)
def test_every_reason_is_in_the_text(model: ModelPlan) -> None:
    text = "".join(commented(config(model), model.knobs).split()).replace("#", "")
    for knob in model.knobs:
        reason = "".join(c if c.isprintable() else " " for c in knob.reason)
        assert "".join(reason.split()).replace("#", "") in text


def test_the_text_of_a_vector_in_a_plan_is_no_second_copy_of_the_proto() -> None:
    """A type that Triton does not have is told where it is written, not when Triton loads it."""
    with pytest.raises(ValueError, match="TYPE_FLOAT"):
        config(embed(outputs=(VECTOR, Tensor("x", "TYPE_FLOAT", (1,)))))
