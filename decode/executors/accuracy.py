"""Says what smaller weights cost: perplexity and greedy agreement of one kind of weights against another.

Must not know how either kind is computed: it asks two executors for logits.
"""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from decode.executors.model_config import ModelConfig, Precision
from decode.executors.torch_paged import TorchExecutor
from decode.plan import Chunk, Draw, StepPlan
from decode.types import SamplingParams

PAGE_SIZE = 16
ROWS = 256  # tokens a step
MAX_PERPLEXITY_RATIO = 1.03
GREEDY = SamplingParams(temperature=0, seed=0)


def english(texts: int = 4, characters: int = 3000) -> list[str]:
    """English prose that ships with Python: the longest topics of its reference."""
    topics = sorted(pydoc_data.topics.topics.values(), key=len, reverse=True)
    return [" ".join(topic.split())[:characters] for topic in topics[:texts]]


def max_tokens(model_dir: Path | str) -> int:
    """Longest text that `compare` can judge on this model."""
    return ModelConfig.read(model_dir).max_position_embeddings


def compare(
    model_dir: Path | str, texts: Sequence[Sequence[int]], weights: Precision = "int8", reference: Precision = "fp32"
) -> dict[str, float]:
    """Feed token sequences to both kinds of weights, next tokens known.

    Returns `tokens` judged, `perplexity_<kind>` of both, their `ratio`, `agreement` (share of positions where the
    likeliest next token is the same) and `passed` (1.0 when the ratio is at most MAX_PERPLEXITY_RATIO).
    """
    pages = max(-(-len(t) // PAGE_SIZE) for t in texts)
    losses, best = {}, {}
    for kind in (reference, weights):
        executor = TorchExecutor(model_dir, num_pages=pages, page_size=PAGE_SIZE, weights=kind)
        judged = [_judge(executor, text) for text in texts]
        losses[kind] = torch.cat([loss for loss, _ in judged])
        best[kind] = torch.cat([token for _, token in judged])
    perplexity = {kind: float(loss.mean().exp()) for kind, loss in losses.items()}
    ratio = perplexity[weights] / perplexity[reference]
    return {
        "tokens": float(len(losses[weights])),
        **{f"perplexity_{kind}": value for kind, value in perplexity.items()},
        "ratio": ratio,
        "agreement": float((best[weights] == best[reference]).double().mean()),
        "passed": float(ratio <= MAX_PERPLEXITY_RATIO),
    }


def _judge(executor: TorchExecutor, text: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Loss of every next token, and the likeliest one, at every position but the last."""
    pages = tuple(range(-(-len(text) // PAGE_SIZE)))
    losses, best = [], []
    for begin in range(0, len(text) - 1, ROWS):
        at = range(begin, min(begin + ROWS, len(text) - 1))
        chunks = tuple(Chunk(0, (text[i],), i, pages, Draw(GREEDY, i + 1)) for i in at)
        logits = executor.logits(StepPlan(0, chunks))
        wanted = torch.tensor([text[i + 1] for i in at])
        losses.append(functional.cross_entropy(logits, wanted, reduction="none"))
        best.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(best)
