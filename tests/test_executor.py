"""The CPU executor against transformers and against itself: families, pages, chunks, batches, copies, int8."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import FAMILIES, SMALL, random_model, save_hf
from tokenizers import Tokenizer

from builders.llm import build_llm
from decode.executors.accuracy import compare, english
from decode.executors.torch_paged import Precision, TorchExecutor
from decode.plan import Chunk, Copy, Draw, StepPlan
from decode.types import SamplingParams

GREEDY = SamplingParams(temperature=0, seed=0)
PAGES = 64
ODD = {**SMALL, "hidden_size": 40, "intermediate_size": 56, "head_dim": 10, "vocab_size": 331}
EXTRA: dict[str, Any] = {  # beside the families: as many KV heads as heads, and sizes that fill no whole vector
    "every-head-its-own": lambda: transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 4}),
    "odd-sizes": lambda: transformers.LlamaConfig(**ODD),
}
KINDS: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Family name → (transformers model, directory as `gapless build` makes it)."""
    made: dict[str, tuple[transformers.PreTrainedModel, Path]] = {}

    def build(family: str) -> tuple[transformers.PreTrainedModel, Path]:
        if family not in made:
            FAMILIES.update(EXTRA)
            model = random_model(family)
            source = save_hf(model, tmp_path_factory.mktemp(family))
            made[family] = model, build_llm(f"hf:{source}", tmp_path_factory.mktemp(f"{family}-built")).out
        return made[family]

    return build


def executor(directory: Path, page_size: int = 16, weights: Precision = "fp32") -> TorchExecutor:
    return TorchExecutor(directory, num_pages=PAGES, page_size=page_size, weights=weights, threads=2)


def tokens_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(2, 320) for _ in range(length))


def some_pages(count: int, seed: int = 0, among: range = range(PAGES)) -> tuple[int, ...]:
    return tuple(random.Random(seed).sample(among, count))


def chunk(tokens: tuple[int, ...], start: int, end: int, pages: tuple[int, ...]) -> Chunk:
    """Tokens [start, end) of a sequence, logits wanted after the last."""
    return Chunk(0, tokens[start:end], start, pages, Draw(GREEDY, end))


def logits(executor: TorchExecutor, *chunks: Chunk, copies: tuple[Copy, ...] = ()) -> torch.Tensor:
    return executor.logits(StepPlan(0, chunks, copies)).clone()


def every_position(tokens: tuple[int, ...], start: int, end: int, pages: tuple[int, ...]) -> list[Chunk]:
    """One chunk for each token: each reads what the others of the same step write."""
    return [chunk(tokens, i, i + 1, pages) for i in range(start, end)]


@pytest.mark.parametrize("page_size", [16, 5])
@pytest.mark.parametrize("family", [*FAMILIES, *EXTRA])
def test_logits_are_those_of_transformers(built: Any, family: str, page_size: int) -> None:
    model, directory = built(family)
    tokens = tokens_of(75)
    pages = some_pages(-(-75 // page_size))
    with torch.inference_mode():
        want = model(torch.tensor([tokens])).logits[0]
    run = executor(directory, page_size)
    got = [logits(run, chunk(tokens, 0, 33, pages)), logits(run, *every_position(tokens, 33, 75, pages))]
    assert (torch.cat(got) - want[32:]).abs().max() <= 1e-4


@pytest.mark.parametrize("weights", KINDS)
def test_a_row_does_not_depend_on_its_batch_mates_nor_on_chunking(built: Any, weights: Precision) -> None:
    _, directory = built("qwen3")
    run = executor(directory, weights=weights)
    tokens, mine = tokens_of(70), some_pages(5, among=range(5))
    whole = logits(run, chunk(tokens, 0, 70, mine))
    others = [chunk(tokens_of(90, seed), 0, 20 * seed, tuple(range(5 + 6 * seed, 11 + 6 * seed))) for seed in (1, 2, 3)]
    logits(run, *others, chunk(tokens, 0, 29, mine))
    logits(run, chunk(tokens, 29, 69, mine), *others[:1])
    mixed = logits(run, chunk(tokens, 69, 70, mine), *others)
    assert torch.equal(mixed[0], whole[0])


def test_a_chunk_reads_pages_that_another_chunk_of_its_step_fills(built: Any) -> None:
    _, directory = built("llama")
    run = executor(directory)
    tokens = tokens_of(48)
    alone = logits(run, chunk(tokens, 0, 48, (0, 1, 2)))
    together = logits(run, chunk(tokens, 32, 48, (7, 4, 9)), chunk(tokens, 0, 32, (7, 4)))
    assert torch.equal(together[0], alone[0])


@pytest.mark.parametrize("page_size", [16, 20])
@pytest.mark.parametrize("part", [1, 0.5, 0.1])
def test_copied_slots_stand_for_the_originals(built: Any, page_size: int, part: float) -> None:
    _, directory = built("llama-tied-bias")
    run = executor(directory, page_size)
    tokens = tokens_of(3 * page_size)
    logits(run, chunk(tokens, 0, 2 * page_size, (3, 8)))
    copied = max(1, int(part * page_size))
    other = tokens_of(2 * page_size, 1)
    logits(run, chunk(other, 0, 2 * page_size, (9, 5)))
    before = logits(run, chunk(other, 2 * page_size - 1, 2 * page_size, (9, 5)))
    start = page_size + copied
    want = logits(run, chunk(tokens, start, start + 3, (3, 8, 6)))
    got = logits(run, chunk(tokens, start, start + 3, (3, 5, 6)), copies=(Copy(8, 5, copied),))
    assert torch.equal(got, want)
    if copied < page_size:  # what the copy left alone is still there, once the start is restored
        run = executor(directory, page_size)
        logits(run, chunk(other, 0, 2 * page_size, (9, 5)))
        logits(run, copies=(Copy(5, 6, page_size), Copy(8, 5, copied), Copy(6, 5, copied)))
        after = logits(run, chunk(other, 2 * page_size - 1, 2 * page_size, (9, 5)))
        assert torch.equal(after, before)


def test_results_carry_a_token_where_a_draw_was_asked(built: Any) -> None:
    model, directory = built("mistral")
    tokens = tokens_of(40)
    run = executor(directory)
    first = Chunk(0, tokens[:20], 0, (1, 2), None)
    asked = Draw(SamplingParams(temperature=0, seed=0, logprobs=2), 40)
    second = Chunk(1, tokens, 0, (3, 4, 5), asked)
    result = run.execute(StepPlan(0, (second, first)))
    with torch.inference_mode():
        want = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
    assert result.tokens == (int(want.argmax()), None)
    assert result.logprobs[1] is None
    assert result.logprobs[0] is not None
    assert result.logprobs[0].logprob == pytest.approx(float(want.max()), abs=1e-4)
    assert result.elapsed > 0
    assert all(seconds >= 0 for seconds in run.profile.values())


def test_a_chunk_without_room_is_refused(built: Any) -> None:
    _, directory = built("llama")
    with pytest.raises(ValueError, match="1 pages, 2 are needed"):
        logits(executor(directory), chunk(tokens_of(17), 0, 17, (0,)))


def test_a_step_without_draws_gives_no_logits(built: Any) -> None:
    _, directory = built("llama")
    run = executor(directory)
    tokens = tokens_of(33)
    result = run.execute(StepPlan(0, (Chunk(0, tokens[:32], 0, (0, 1, 2), None),)))
    assert result.tokens == (None,)
    assert torch.equal(logits(run, chunk(tokens, 32, 33, (0, 1, 2))), logits(run, chunk(tokens, 0, 33, (3, 4, 5))))


PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "Water boils at",
    "My favourite book is",
    "In 1969, people first",
    "To make bread you need",
    "The three laws of motion say",
]


def test_greedy_text_is_that_of_transformers(smollm2_dir: Path) -> None:
    """Token by token: what transformers finds likeliest after our text so far is what we drew next."""
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    prompts = [tuple(tokenizer.encode(prompt).ids) for prompt in PROMPTS]
    run = executor(smollm2_dir)
    for prompt, drawn in zip(prompts, greedy(run, prompts, 64), strict=True):
        with torch.inference_mode():
            likely = model(torch.tensor([prompt + drawn[:-1]])).logits[0, len(prompt) - 1 :]
            likely[:, list(run.config.eos_token_ids)] = -torch.inf
        assert drawn == tuple(likely.argmax(-1).tolist())


def greedy(run: TorchExecutor, prompts: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """All prompts in one batch; end-of-sequence is never drawn."""
    sequences = list(prompts)
    done = [0] * len(prompts)
    for _ in range(count):
        chunks = []
        for i, tokens in enumerate(sequences):
            draw = Draw(GREEDY, len(tokens), banned=tuple(run.config.eos_token_ids))
            chunks.append(Chunk(i, tokens[done[i] :], done[i], tuple(range(8 * i, 8 * i + 8)), draw))
        result = run.execute(StepPlan(0, tuple(chunks)))
        done = [len(tokens) for tokens in sequences]
        sequences = [(*s, t) for s, t in zip(sequences, result.tokens, strict=True) if t is not None]
    return [s[len(p) :] for s, p in zip(sequences, prompts, strict=True)]


@pytest.mark.parametrize(("weights", "ratio", "agreement"), [("int8", 0.03, 0.9), ("bf16", 0.005, 0.97)])
def test_smaller_weights_keep_perplexity_and_most_choices(
    smollm2_dir: Path, weights: Precision, ratio: float, agreement: float
) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    texts = [tokenizer.encode(text).ids for text in english()]
    found = compare(smollm2_dir, texts, weights)
    assert found["tokens"] > 2000
    assert abs(found["ratio"] - 1) <= ratio
    assert found["agreement"] >= agreement


SHORT_VECTORS = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+cx16"
OTHER_CPU = """
import sys
from pathlib import Path
import torch
from test_executor import chunk, executor, logits, tokens_of
for kind in ("fp32", "int8", "bf16"):
    run = executor(Path(sys.argv[1]), weights=kind)
    torch.save(logits(run, chunk(tokens_of(60), 0, 60, (0, 1, 2, 3))), f"{sys.argv[2]}/{kind}")
"""


def test_a_cpu_with_shorter_vectors_computes_the_same(built: Any, tmp_path: Path) -> None:
    """AVX2 in place of AVX-512 and its products of bytes and of bfloat16; the latter sum in another order."""
    _, directory = built("qwen3")
    avx2 = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": SHORT_VECTORS}
    subprocess.run(
        [sys.executable, "-c", OTHER_CPU, directory, tmp_path],
        cwd=Path(__file__).parent,
        env=os.environ | avx2,
        check=True,
    )
    for kind, allowed in (("fp32", 0.0), ("int8", 0.0), ("bf16", 0.02)):
        here = logits(executor(directory, weights=kind), chunk(tokens_of(60), 0, 60, (0, 1, 2, 3)))
        there = torch.load(tmp_path / kind)
        assert (here - there).abs().max() <= allowed * here.abs().max()


def test_smaller_weights_take_less_memory(built: Any) -> None:
    _, directory = built("llama")
    by_kind = {kind: executor(directory, weights=kind) for kind in KINDS}
    assert by_kind["int8"].weights_bytes < by_kind["bf16"].weights_bytes < by_kind["fp32"].weights_bytes
    per_token = 2 * SMALL["num_hidden_layers"] * SMALL["num_key_value_heads"] * 16
    assert by_kind["fp32"].kv_bytes_per_token == 4 * per_token
    assert by_kind["int8"].kv_bytes_per_token == 2 * per_token
