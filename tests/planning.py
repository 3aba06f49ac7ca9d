"""Facts of models that nobody built, with costs by formula, so that what a plan should find can be worked out."""

from __future__ import annotations

from itertools import product

from config_gen.facts import LlmFacts, OnnxFacts
from config_gen.plan import Tensor
from config_gen.profile import Prepare, Profile, Row
from decode.executors.cost_model import Fit, FittedLaw

BATCHES, LENGTHS = (1, 2, 4, 8, 16, 32), (16, 64, 256)
MIB = 2**20
TEXT = (Tensor("text", "TYPE_STRING", (1,)),)
PICTURE = (Tensor("image", "TYPE_STRING", (1,), True), Tensor("pixels", "TYPE_UINT8", (-1, -1, 3), True))
OUT = (Tensor("out", "TYPE_FP32", (8,)),)


def profile(
    fixed: float = 1.5, per_token: float = 0.03, cores: int = 2, memory: int = 600, gpu: bool = False, text: bool = True
) -> Profile:
    """A run takes `fixed` + `per_token` * rows * length ms on all cores, and as many times more on one as half of it
    is parallel; `memory` in MiB."""
    threads = (0,) if gpu else tuple(n for n in (1, 2, 4, 8) if n <= cores)
    lengths = LENGTHS if text else (0,)
    rows = []
    for n, batch, length in product(threads, BATCHES, lengths):
        taken = (fixed + per_token * batch * (length or 32)) * (0.5 + 0.5 * cores / n if n else 1.0)
        rows.append(Row(batch, length, n, taken, taken * 1.1, 0.1, batch / taken * 1e3, 50))
    return Profile(
        format=3,
        machine="made up",
        runtime="tensorrt" if gpu else "onnxruntime",
        precision="fp32",
        cores=cores,
        host_memory=16 * 1024 * MIB,
        memory=memory * MIB,
        prepare=Prepare(0.2, 0.1),
        cold=1.0,
        typical_length=64 if text else 0,
        run_cost=(fixed, per_token) if text else None,
        knee={"64": 8} if text else {"0": 8},
        rows=tuple(rows),
    )


def engine(**settings: object) -> OnnxFacts:
    """A text encoder with such a profile."""
    made = profile(**settings)  # type: ignore[arg-type]
    return OnnxFacts(made, TEXT, OUT, "text", 32, made.memory, on_gpu=made.runtime == "tensorrt")


def pictures(**settings: object) -> OnnxFacts:
    """A model of pictures, as a client may send them: encoded or as pixels."""
    made = profile(text=False, **settings)  # type: ignore[arg-type]
    return OnnxFacts(made, PICTURE, OUT, "image", 32, made.memory, made.runtime == "tensorrt", size=224)


def llm(step: float = 12.0, per_token: float = 0.9, cores: int = 2, weights: int = 800, gpu: bool = False) -> LlmFacts:
    """Steps of `step` ms and `per_token` ms for each token; 45 KiB of KV a token; `weights` in MiB."""
    fit = Fit(0.02, 0.05, 100, 100)
    law = FittedLaw(step * 1e6, (0,), (per_token * 1e6,), 0.5e6, 300.0, 0.1e6, 2000.0, 0.2e6, fit)
    return LlmFacts(law, 46_080, 8192, weights * MIB, "measured on something made up", gpu, cores, 16 * 1024 * MIB)
