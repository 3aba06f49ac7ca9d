"""The CUDA path's class on the CPU, with its stand-in attention, against the CPU path and transformers."""

from __future__ import annotations

import functools
import inspect
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import FAMILIES, SMALL, random_model, save_hf
from torch import Tensor
from torch.nn.attention import varlen

from builders.llm import build_llm
from decode.assembly import KV_BYTES, engine_config
from decode.config import ConfigError
from decode.executors import weights as weight_files
from decode.executors.batch import flatten
from decode.executors.cuda_paged import CudaModel, padded
from decode.executors.model_config import ModelConfig
from decode.executors.paged_attention import Attention, gather_attention, kernel_attention
from decode.executors.torch_paged import TorchExecutor
from decode.options import ServiceOptions
from decode.plan import Chunk, Copy, Draw, StepPlan
from decode.types import SamplingParams

GREEDY = SamplingParams(temperature=0, seed=0)
CPU = torch.device("cpu")
PAGES, PAGE_SIZE = 32, 8


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Family name → (transformers model, directory as `gapless build` makes it)."""
    made: dict[str, tuple[transformers.PreTrainedModel, Path]] = {}

    def build(family: str) -> tuple[transformers.PreTrainedModel, Path]:
        if family not in made:
            model = random_model(family)
            source = save_hf(model, tmp_path_factory.mktemp(family))
            made[family] = model, build_llm(f"hf:{source}", tmp_path_factory.mktemp(f"{family}-built")).out
        return made[family]

    return build


def cuda_model(directory: Path, kind: str = "fp32", attention: Attention | None = None) -> CudaModel:
    config = ModelConfig.read(directory)
    weights = weight_files.load(directory, config, torch.float32)
    return CudaModel(config, weights, kind, PAGES, PAGE_SIZE, CPU, attention)


def tokens_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(2, 320) for _ in range(length))


def chunk(tokens: tuple[int, ...], start: int, end: int, pages: tuple[int, ...], draw: bool = True) -> Chunk:
    return Chunk(0, tokens[start:end], start, pages, Draw(GREEDY, end) if draw else None)


A, B = tokens_of(40, 1), tokens_of(37, 2)
AT, BT = (3, 30, 7, 1, 9), (31, 0, 12, 5, 20)
SHARED = A[:16] + B  # its first two pages are A's
PLANS = [  # prefill in chunks, decode beside prefill, pages shared within and between steps, copies, decode only
    StepPlan(0, (chunk(A, 0, 21, AT, draw=False), chunk(B, 0, 5, BT))),
    StepPlan(1, (chunk(B, 5, 6, BT), chunk(A, 21, 36, AT), chunk(SHARED, 16, 30, (3, 30, 2, 4)))),
    StepPlan(2, (chunk(A, 36, 37, AT), chunk(B, 6, 30, BT)), (Copy(2, 6, 8), Copy(4, 8, 6))),
    StepPlan(3, (chunk(SHARED, 30, 31, (3, 30, 6, 8)), chunk(A, 37, 38, AT), chunk(B, 30, 31, BT))),
    StepPlan(4, (chunk(A, 38, 39, AT), chunk(B, 31, 32, BT, draw=False), chunk(A, 39, 40, AT))),
    StepPlan(5, (chunk(B, 32, 33, BT, draw=False),)),
    StepPlan(6, ()),
]
DRAWN = [[B[:5]], [B[:6], A[:36], SHARED[:30]], [A[:37], B[:30]], [SHARED[:31], A[:38], B[:31]], [A[:39], A], [], []]


def run(model: CudaModel, plan: StepPlan) -> Tensor:
    model.copy(plan.copies)
    return model.forward(flatten(plan, PAGE_SIZE)).clone()


def from_scratch(model: transformers.PreTrainedModel, prefixes: list[tuple[int, ...]]) -> Tensor:
    with torch.inference_mode():
        rows = [model(torch.tensor([prefix])).logits[0, -1] for prefix in prefixes]
    return torch.stack(rows) if rows else torch.empty(0, SMALL["vocab_size"])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_and_of_the_cpu_path(built: Any, family: str) -> None:
    reference, directory = built(family)
    model = cuda_model(directory)
    cpu = TorchExecutor(directory, num_pages=PAGES, page_size=PAGE_SIZE, threads=2)
    for plan, prefixes in zip(PLANS, DRAWN, strict=True):
        got = run(model, plan)
        assert got.dtype == torch.float32
        for want in (cpu.logits(plan), from_scratch(reference, prefixes)):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_half_precision_stays_near_the_reference(built: Any, kind: str) -> None:
    reference, directory = built("qwen3")
    model = cuda_model(directory, kind)
    for plan, prefixes in zip(PLANS, DRAWN, strict=True):
        want = from_scratch(reference, prefixes)
        torch.testing.assert_close(run(model, plan), want, atol=0.1, rtol=0)


REAL = inspect.signature(varlen.varlen_attn)


def exact_varlen(*arguments: Any, **named: Any) -> Tensor:
    """What the documentation of torch's `varlen_attn` says it computes, key by key in float64."""
    a = REAL.bind(*arguments, **named).arguments
    assert a["window_size"] == (-1, 0) and a["enable_gqa"] and a["cu_seq_k"] is None
    assert all(a[name].dtype == torch.int32 for name in ("cu_seq_q", "seqused_k", "block_table"))
    q, firsts, out = a["query"], a["cu_seq_q"].tolist(), torch.empty_like(a["query"])
    group = q.shape[1] // a["key"].shape[2]
    for i, keys in enumerate(a["seqused_k"].tolist()):
        length = firsts[i + 1] - firsts[i]
        assert length <= a["max_q"] and keys <= a["max_k"]
        size = a["key"].shape[1]
        where = [(int(a["block_table"][i, p // size]), p % size) for p in range(keys)]
        k, v = (torch.stack([x[page, at] for page, at in where]).double() for x in (a["key"], a["value"]))
        for row in range(length):
            sees = keys - length + row + 1
            for head in range(q.shape[1]):
                scores = k[:sees, head // group] @ q[firsts[i] + row, head].double() / q.shape[2] ** 0.5
                out[firsts[i] + row, head] = scores.softmax(0) @ v[:sees, head // group]
    return out


def test_the_kernel_is_asked_for_what_the_stand_in_computes(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, directory = built("llama")
    stand_in = cuda_model(directory, attention=gather_attention)
    monkeypatch.setattr(varlen, "varlen_attn", functools.wraps(varlen.varlen_attn)(exact_varlen))
    kernel = cuda_model(directory)
    assert kernel._attention is kernel_attention
    for plan in PLANS[:5]:
        torch.testing.assert_close(run(kernel, plan), run(stand_in, plan), atol=1e-4, rtol=0)


def test_where_the_kernel_does_not_run_the_stand_in_is_picked(built: Any) -> None:
    assert cuda_model(built("llama")[1], "bf16")._attention is gather_attention


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9])
def test_padding_adds_rows_that_touch_the_scratch_page_only(rows: int) -> None:
    tokens = tokens_of(8 * 6)
    starts = [random.Random(i).randrange(40) for i in range(rows)]
    chunks = tuple(chunk(tokens, s, s + 1, tuple(range(6))) for s in starts)
    batch = flatten(StepPlan(0, chunks), PAGE_SIZE)
    grown = padded(batch, PAGES, PAGE_SIZE)
    size = next(n for n in (1, 2, 4, 8, 16) if n >= rows)
    width = next(n for n in (1, 2, 4, 8) if n >= batch.pages.shape[1])
    assert grown.pages.shape == (size, width)
    for name in ("tokens", "positions", "slots", "keys"):
        assert getattr(grown, name).shape == (size,)
        assert np.array_equal(getattr(grown, name)[:rows], getattr(batch, name))
    assert np.array_equal(grown.pages[:rows, : batch.pages.shape[1]], batch.pages)
    assert (grown.slots[rows:] == PAGES * PAGE_SIZE).all() and (grown.pages[rows:] == PAGES).all()
    assert (grown.keys[rows:] == 1).all() and (grown.positions[rows:] == 0).all()
    assert grown.first_row.tolist() == list(range(size + 1)) and grown.draw_rows.tolist() == list(range(size))


def test_padded_steps_leave_other_pages_alone(built: Any) -> None:
    model = cuda_model(built("llama")[1])
    before = model._kv.pages.clone()
    run(model, StepPlan(0, tuple(chunk(A, i, i + 1, (4,)) for i in range(3))))
    changed = (model._kv.pages != before).flatten(3).any(-1).any(0).any(0).nonzero().flatten().tolist()
    assert changed == [4, PAGES]


@pytest.mark.parametrize(("kind", "size"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_bytes_are_those_that_memory_is_planned_with(built: Any, kind: str, size: int) -> None:
    for family in ("llama-tied-bias", "qwen3"):
        model = cuda_model(built(family)[1], kind)
        assert model.weights_bytes == size * model.config.num_parameters
        assert model.kv_bytes_per_token == model.config.kv_bytes_per_token(KV_BYTES[kind])


def test_int8_and_a_missing_card_are_refused_in_one_line(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = built("llama")[1]
    with pytest.raises(ConfigError, match=r"^weights: int8 is not allowed on device cuda; one of fp32, bf16, fp16$"):
        TorchExecutor(directory, num_pages=PAGES, page_size=PAGE_SIZE, device="cuda", weights="int8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^device: cuda is not allowed here, for torch finds no GPU; cpu$"):
        engine_config(ModelConfig.read(directory), ServiceOptions(device="cuda"))
