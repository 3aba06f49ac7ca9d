"""The cost of a step on GPUs that are not here: tables, their claims, and the law that puts them together."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from decode.executors.gpu_cost import GpuError, GpuLaw, ModelShape, StepWork, gpu_table, known_gpus, prefill_ns
from decode.executors.gpu_table import TABLES
from decode.executors.model_config import ModelConfig

HELD_OUT = json.loads((Path(__file__).parent / "data/gpu_held_out_a100.json").read_text())
LLAMA_7B = ModelShape(32, 4096, 11008, 32, 32, 128, 32000)
MISTRAL_7B = ModelShape(32, 4096, 14336, 32, 8, 128, 32000)
SMALL = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied=True)
MEASURED = [gpu for gpu in known_gpus() if not gpu_table(gpu).raw["estimated"]]
STEP = 2 ** (0.5 / 100)  # values are rounded to a hundredth of an octave


def decoding(sequences: int, context: int) -> StepWork:
    return StepWork(decodes=sequences, context_tokens=sequences * context, draws=sequences)


def prompt(tokens: int, context: int = 0) -> StepWork:
    """One chunk, the last of its prompt."""
    return StepWork(prefill_tokens=tokens, prefills=1, prefill_context=tokens * context + tokens * tokens // 2, draws=1)


# The files


def test_the_gpus_asked_for_are_there() -> None:
    assert {"a100_sxm", "h100_sxm", "h200_sxm", "l40s", "t4", "l4", "a10"} <= set(known_gpus())
    assert {gpu for gpu in known_gpus() if gpu not in MEASURED} == {"t4", "l4", "a10"}


def rising(cells: list[Any]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(cells))


@pytest.mark.parametrize("gpu", known_gpus())
def test_each_file_is_whole_small_and_says_where_it_is_from(gpu: str) -> None:
    assert (TABLES / f"{gpu}.json").stat().st_size < 200_000
    raw = gpu_table(gpu).raw
    assert raw["gpu"] == gpu and raw["source"]["package"] == "aiconfigurator-core" and raw["source"]["version"]
    assert raw["memory_bytes"] > 2**33 and raw["bandwidth"] > 1e11 and raw["kernel_ns"] > 0
    assert set(raw["precisions"].values()) <= set(raw["linear"]) and "fp16" in raw["precisions"]
    tables = [*raw["linear"].values(), *raw["prefill"].values(), *raw["decode"].values()]
    assert all(("framework" in table and "version" in table) or raw["estimated"] for table in tables)
    assert ("how" in raw) == raw["estimated"]
    for table in raw["linear"].values():
        assert len(table["values"]) == len(table["n"]) and rising(table["n"]) and rising(table["k"])
        assert all(len(row) == len(table["k"]) for row in table["values"])
        assert all(len(cell) == len(table["m"]) and rising(cell) for row in table["values"] for cell in row)
    for table in [*raw["prefill"].values(), *raw["decode"].values()]:
        assert len(table["values"]) == len(table["pairs"])
        for grid in table["values"]:
            assert len(grid) == len(table["rows"]) and all(len(row) == len(table["columns"]) for row in grid)
            assert all(rising(row) for row in grid) and all(rising(list(column)) for column in zip(*grid, strict=True))


@pytest.mark.parametrize("gpu", MEASURED)
def test_claimed_errors_of_measured_gpus_are_small(gpu: str) -> None:
    raw = gpu_table(gpu).raw
    for kind in ("linear", "prefill", "decode"):
        for table in raw[kind].values():
            for error in table["error"].values():
                assert error["rows"] > 300 and error["median"] <= 0.10


def off(predicted: float, measured: float) -> float:
    return abs(predicted / measured - 1)


def claimed(errors: list[float]) -> tuple[int, float, float]:
    """Rows, median, and 95th percentile between the neighbouring ranks."""
    ordered, at = sorted(errors), 0.95 * (len(errors) - 1)
    low = ordered[math.floor(at)]
    return len(errors), statistics.median(errors), low + (ordered[math.ceil(at)] - low) * (at - math.floor(at))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_linear_layers_of_shapes_that_were_held_out_are_as_far_off_as_the_file_says(precision: str) -> None:
    table = gpu_table(HELD_OUT["gpu"])
    rows = HELD_OUT[f"linear {precision}"]
    found = claimed([off(table.linear_grid(precision, n, k).ns(m, 1) / 1000, us) for m, n, k, us in rows])
    said = table.raw["linear"][precision]["error"]["shapes"]
    assert found == (said["rows"], pytest.approx(said["median"], abs=2e-4), pytest.approx(said["p95"], abs=1e-3))


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_attention_that_was_held_out_is_as_far_off_as_the_file_says(kind: str) -> None:
    table = gpu_table(HELD_OUT["gpu"])
    errors = []
    for heads, kv, count, length, us in HELD_OUT[f"{kind} 128"]:
        decode = table.attention("decode", heads, kv, 128)
        if kind == "decode":
            ns = decode.ns(count, length)
        else:
            grid = table.attention("prefill", heads, kv, 128)
            ns = prefill_ns(grid, decode, count, count * length, count * length * length / 2)
        errors.append(off(ns / 1000, us))
    said = table.raw[kind]["128"]["error"]["held_out"]
    assert claimed(errors) == (
        said["rows"],
        pytest.approx(said["median"], abs=2e-4),
        pytest.approx(said["p95"], abs=1e-3),
    )


# Interpolation


def test_points_of_the_tables_are_hit() -> None:
    table = gpu_table("h100_sxm")
    linear = table.raw["linear"]["bf16"]
    for i, j, at in ((0, 0, 0), (5, 7, 3), (12, 9, 10), (19, 18, len(linear["m"]) - 1)):
        want = 1000 * 2 ** (linear["values"][i][j][at] / 100)
        assert table.linear_grid("bf16", linear["n"][i], linear["k"][j]).ns(linear["m"][at], 1) == pytest.approx(want)
    for kind in ("prefill", "decode"):
        cells = table.raw[kind]["128"]
        for p, i, j in ((0, 0, 0), (9, 3, 4), (len(cells["pairs"]) - 1, 8, 9)):
            heads, kv = cells["pairs"][p]
            want = 1000 * 2 ** (cells["values"][p][i][j] / 100)
            grid = table.attention("prefill" if kind == "prefill" else "decode", heads, kv, 128)
            assert grid.ns(cells["rows"][i], cells["columns"][j]) == pytest.approx(want)


def test_between_points_it_is_between_them_and_beyond_it_grows_with_the_work() -> None:
    table = gpu_table("a100_sxm")
    narrow, wide = (table.linear_grid("bf16", n, 4096).ns(256, 1) for n in (12288, 16384))
    assert narrow < table.linear_grid("bf16", 14336, 4096).ns(256, 1) < wide
    head = [table.linear_grid("bf16", n, 4096).ns(1, 1) for n in (65536, 131072)]
    assert head[1] == pytest.approx(2 * head[0])
    decode = table.attention("decode", 32, 8, 128)
    assert decode.ns(4096, 131072) == pytest.approx(2 * decode.ns(2048, 131072))
    assert decode.ns(1, 262144) == pytest.approx(2 * decode.ns(1, 131072))
    prefill = table.attention("prefill", 32, 8, 128)
    assert prefill.ns(1, 32768) == pytest.approx(4 * prefill.ns(1, 16384))


def test_heads_that_were_not_measured_lie_between_those_that_were() -> None:
    table = gpu_table("a100_sxm")
    few, some, many = (table.attention("prefill", h, 4, 128).ns(8, 1024) for h in (24, 28, 32))
    assert few < some < many
    # 32 heads with keys of their own decode like four times as many sequences with eight of them.
    alone, eight = table.attention("decode", 32, 32, 128), table.attention("decode", 8, 8, 128)
    assert alone.ns(4, 1024) == pytest.approx(eight.ns(16, 1024))


# Steps


@pytest.mark.parametrize("gpu", known_gpus())
@pytest.mark.parametrize("model", [LLAMA_7B, MISTRAL_7B, SMALL])
def test_a_step_never_gets_cheaper_by_more_work(gpu: str, model: ModelShape) -> None:
    law = GpuLaw(gpu_table(gpu), model)
    sizes = [1, 2, 3, 7, 16, 33, 64, 65, 100, 256, 300, 511, 513, 1000, 2048, 3000, 8192, 10000]
    contexts = [0, 1, 10, 100, 511, 1000, 4096, 5000, 16384, 40000]
    for context in contexts:
        assert rising([law.step(prompt(tokens, context)) for tokens in sizes])
        assert rising([law.step(decoding(sequences, context + 1)) for sequences in sizes])
    for size in sizes:
        assert rising([law.step(prompt(size, context)) for context in contexts])
        assert rising([law.step(decoding(size, context + 1)) for context in contexts])
    assert law.step(StepWork()) == 0.0


def test_parts_of_a_step_add_up() -> None:
    law = GpuLaw(gpu_table("a100_sxm"), MISTRAL_7B)
    mixed = StepWork(512, 1, 512 * 256, 16, 16 * 1000, 17)
    alone = [law.step(prompt(512)), law.step(decoding(16, 1000))]
    assert max(alone) < law.step(mixed) < sum(alone)  # the weights are read once for both


def test_decoding_one_sequence_of_a_7b_model_is_bound_by_reading_the_weights() -> None:
    law = GpuLaw(gpu_table("a100-80gb"), LLAMA_7B, "fp16")
    bound = law.memory().weights / 2.039e12 * 1e9
    assert 6.5e6 < bound < 7.5e6
    assert bound < law.step(decoding(1, 200)) < 2 * bound
    assert law.step(decoding(16, 200)) < 1.5 * law.step(decoding(1, 200))


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    law = GpuLaw(gpu_table("a100_sxm"), LLAMA_7B)
    tokens = 2048
    flops = 2 * (law.memory().weights / 2) * tokens + LLAMA_7B.layers * 2 * 4096 * tokens**2
    assert flops / 312e12 * 1e9 < law.step(prompt(tokens)) < 2 * flops / 312e12 * 1e9


def test_a_chunk_behind_a_context_costs_more_than_alone_and_less_than_the_whole() -> None:
    law = GpuLaw(gpu_table("h100_sxm"), MISTRAL_7B)
    assert law.step(prompt(512)) < law.step(prompt(512, 7680)) < law.step(prompt(8192))
    chunks = sum(law.step(prompt(512, done)) for done in range(0, 8192, 512))
    assert law.step(prompt(8192)) < chunks < 2 * law.step(prompt(8192))


def test_int8_reads_half_and_a_precision_without_measurements_is_refused() -> None:
    table = gpu_table("a100_sxm")
    half, plain = GpuLaw(table, LLAMA_7B, "int8"), GpuLaw(table, LLAMA_7B, "fp16")
    assert 0.45 < half.memory().weights / plain.memory().weights < 0.6
    assert half.step(decoding(1, 200)) < 0.75 * plain.step(decoding(1, 200))
    with pytest.raises(GpuError, match=r"precision 'fp32' has no measurements on a100_sxm; .* fp16, bf16, int8"):
        GpuLaw(table, LLAMA_7B, "fp32")


def test_memory_is_that_of_the_model() -> None:
    config = ModelConfig(32000, 4096, 32, 32, 32, 128, 11008, 1e-5, 1e4, 4096, False, dtype="float16")
    memory = GpuLaw(gpu_table("a100_sxm"), ModelShape.of(config)).memory()
    assert memory.weights == config.weights_bytes and memory.kv_per_token == config.kv_bytes_per_token(2) == 2**19
    assert memory.total == 80 * 2**30
    assert memory.tokens(0.8) == int(0.8 * memory.total - memory.weights - memory.reserved) // 2**19
    small = ModelConfig(49152, 576, 30, 9, 3, 64, 1536, 1e-5, 1e4, 8192, True, dtype="float16")
    assert GpuLaw(gpu_table("t4"), ModelShape.of(small)).memory().weights == small.weights_bytes


def test_an_unknown_gpu_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(GpuError) as refused:
        gpu_table("v100")
    message = str(refused.value)
    assert refused.value.exit_status == 2 and "\n" not in message and "'v100'" in message
    assert all(name in message for name in known_gpus())
    assert gpu_table("A100-80GB").name == gpu_table("a100_sxm").name == "a100_sxm"
