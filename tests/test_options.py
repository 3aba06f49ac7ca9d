"""Options as they stand in a model's parameters: every parser, what it takes and what it says when it refuses."""

from __future__ import annotations

from dataclasses import fields

import pytest

from decode.config import ConfigError, TierConfig
from decode.options import ServiceOptions


def test_without_parameters_every_option_has_its_default() -> None:
    assert ServiceOptions.from_parameters({}) == ServiceOptions()
    assert ServiceOptions().tier == "default"


def test_every_option_is_read() -> None:
    text = {
        "max_num_seqs": "8",
        "max_num_batched_tokens": "512",
        "max_model_len": "2048",
        "kv_cache_memory": "3GiB",
        "gpu_memory_utilization": "0.5",
        "page_size": "32",
        "watermark": "0",
        "prefix_cache": "false",
        "mode": "static",
        "policy": "priority",
        "min_prefill_tokens": "16",
        "max_preemptions": "0",
        "early_refusal": "true",
        "swap_space": "1GiB",
        "weights": "int8",
        "device": "cuda:1",
        "threads": "0",
        "step_log": "out/steps",
        "default_tier": "batch",
        "tiers": '{"interactive": {"weight": 8, "queue_timeout_ms": 2000, "max_queue": 64, "ttft_ms": 500,'
        ' "itl_ms": 60, "e2e_ms": 3000}, "batch": {"idle_below": 0.4, "max_long": 2, "long_tokens": 900}}',
    }
    assert text.keys() == {f.name for f in fields(ServiceOptions)}
    options = ServiceOptions.from_parameters(text)
    assert options == ServiceOptions(
        max_num_seqs=8,
        max_num_batched_tokens=512,
        max_model_len=2048,
        kv_cache_memory=3 * 2**30,
        gpu_memory_utilization=0.5,
        page_size=32,
        watermark=0.0,
        prefix_cache=False,
        mode="static",
        policy="priority",
        min_prefill_tokens=16,
        max_preemptions=0,
        early_refusal=True,
        swap_space=2**30,
        weights="int8",
        device="cuda:1",
        threads=0,
        step_log="out/steps",
        default_tier="batch",
        tiers=(
            TierConfig(
                "interactive",
                2_000_000_000,
                weight=8,
                ttft=500_000_000,
                itl=60_000_000,
                e2e=3_000_000_000,
                max_queue=64,
            ),
            TierConfig("batch", idle_below=0.4, max_long=2, long_tokens=900),
        ),
    )
    assert options.tier == "batch"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_seqs", " 8\n", 8),
        ("threads", "3", 3),
        ("kv_cache_memory", "512KiB", 512 * 1024),
        ("kv_cache_memory", "1MiB", 2**20),
        ("gpu_memory_utilization", "1", 1.0),
        ("prefix_cache", "true", True),
        ("mode", "serial", "serial"),
        ("weights", "bf16", "bf16"),
        ("device", "cuda", "cuda"),
        ("tiers", '{"a": {"max_queue": 1}}', (TierConfig("a", max_queue=1),)),
        ("tiers", '{"a.b": {"queue_timeout_ms": 1}}', (TierConfig("a.b", queue_timeout=1_000_000),)),
    ],
)
def test_what_is_taken(name: str, text: str, value: object) -> None:
    assert getattr(ServiceOptions.from_parameters({name: text}), name) == value


def test_the_first_tier_is_the_default_unless_one_is_named() -> None:
    tiers = '{"fast": {}, "slow": {}}'
    assert ServiceOptions.from_parameters({"tiers": tiers}).tier == "fast"
    assert ServiceOptions.from_parameters({"tiers": tiers, "default_tier": "slow"}).tier == "slow"


COUNT = "a whole number >= 1"
SHARE = "a share from 0 to 1"
SIZE = "a whole number with KiB, MiB or GiB, such as 2GiB"
TIERS = 'a JSON object of tiers, such as {"interactive": {"weight": 8, "queue_timeout_ms": 2000}}'
KEYS = "weight, queue_timeout_ms, max_queue, ttft_ms, itl_ms, e2e_ms, idle_below, max_long, long_tokens"
TIER = f"an object with any of {KEYS}"
LIMIT = "a whole number >= 1; leave it out for no limit"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        *(
            (name, text, f"parameters.{name}: {text!r} is not allowed; {COUNT}")
            for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "page_size")
            for text in ("0", "-1", "1.5", "", "many", "٣", "9" * 5000)
        ),
        ("threads", "-1", "parameters.threads: '-1' is not allowed; a whole number >= 0; 0 = all cores"),
        ("kv_cache_memory", "2", f"parameters.kv_cache_memory: '2' is not allowed; {SIZE}"),
        ("kv_cache_memory", "2GB", f"parameters.kv_cache_memory: '2GB' is not allowed; {SIZE}"),
        ("kv_cache_memory", "0GiB", f"parameters.kv_cache_memory: '0GiB' is not allowed; {SIZE}"),
        ("kv_cache_memory", "1.5GiB", f"parameters.kv_cache_memory: '1.5GiB' is not allowed; {SIZE}"),
        ("kv_cache_memory", "٣GiB", f"parameters.kv_cache_memory: '٣GiB' is not allowed; {SIZE}"),
        ("gpu_memory_utilization", "80%", f"parameters.gpu_memory_utilization: '80%' is not allowed; {SHARE}"),
        ("gpu_memory_utilization", "nan", f"parameters.gpu_memory_utilization: 'nan' is not allowed; {SHARE}"),
        ("gpu_memory_utilization", "0", "gpu_memory_utilization: 0.0 is not allowed; a share in (0, 1]"),
        ("watermark", "1.01", f"parameters.watermark: '1.01' is not allowed; {SHARE}"),
        ("watermark", "-0.1", f"parameters.watermark: '-0.1' is not allowed; {SHARE}"),
        ("prefix_cache", "True", "parameters.prefix_cache: 'True' is not allowed; true or false"),
        ("policy", "lifo", "parameters.policy: 'lifo' is not allowed; one of weighted, priority, fcfs"),
        ("max_preemptions", "-1", "parameters.max_preemptions: '-1' is not allowed; a whole number >= 0"),
        ("tiers", '{"a": {"weight": "8"}}', "parameters.tiers.a.weight: '\"8\"' is not allowed; a number"),
        ("tiers", '{"a": {"weight": 0}}', "tiers.a.weight: 0 is not allowed; a number > 0"),
        ("tiers", '{"a": {"idle_below": 40}}', "tiers.a.idle_below: 40 is not allowed; a share in (0, 1]"),
        ("mode", "fast", "parameters.mode: 'fast' is not allowed; one of serial, static, continuous"),
        ("weights", "int4", "parameters.weights: 'int4' is not allowed; one of fp32, bf16, fp16, int8"),
        ("device", "cuda:", "parameters.device: 'cuda:' is not allowed; cpu, cuda or cuda:N"),
        ("device", "gpu", "parameters.device: 'gpu' is not allowed; cpu, cuda or cuda:N"),
        ("default_tier", "vip", "default_tier: 'vip' is not allowed; one of default"),
        ("tiers", "fast", f"parameters.tiers: 'fast' is not allowed; {TIERS}"),
        ("tiers", "{}", f"parameters.tiers: '{{}}' is not allowed; {TIERS}"),
        ("tiers", '["a"]', f"parameters.tiers: '[\"a\"]' is not allowed; {TIERS}"),
        ("tiers", '{"a": 1}', f"parameters.tiers.a: '1' is not allowed; {TIER}"),
        ("tiers", '{"a": {"wait": 1}}', f"parameters.tiers.a: '{{\"wait\": 1}}' is not allowed; {TIER}"),
        *(
            ("tiers", f'{{"a": {{"{key}": {text}}}}}', f"parameters.tiers.a.{key}: '{text}' is not allowed; {LIMIT}")
            for key in ("queue_timeout_ms", "max_queue", "ttft_ms", "itl_ms", "e2e_ms", "max_long", "long_tokens")
            for text in ("0", "-1", "1.5", "true", "null", '"2s"')
        ),
    ],
)
def test_what_is_refused_and_what_the_message_says(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceOptions.from_parameters({name: text})
    assert str(caught.value) == message and caught.value.exit_status == 2


def test_an_unknown_parameter_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceOptions.from_parameters({"max_num_seqs": "8", "zoom": "1", "max_batch": "3"})
    names = ", ".join(sorted(f.name for f in fields(ServiceOptions)))
    assert str(caught.value) == f"parameters.max_batch: unknown; one of {names}"


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01])
def test_a_share_of_the_card_is_checked_however_it_comes(share: float) -> None:
    with pytest.raises(ConfigError, match=r"^gpu_memory_utilization: .* is not allowed; a share in \(0, 1\]$"):
        ServiceOptions(gpu_memory_utilization=share)
