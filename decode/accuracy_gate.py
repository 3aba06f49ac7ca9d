"""The gate before int8 weights: they serve a model only if what they cost was measured and is within the limit.

Owns the record of that measurement, beside the model or in the user's cache. Must not know requests or Triton; the
measuring itself is `executors.accuracy`'s.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from decode.config import ConfigError
from decode.executors import accuracy
from decode.text import Tokenizer

RECORD = "int8_accuracy.json"
TEXTS, CHARACTERS = 2, 3000  # about 1300 tokens
FIGURES = ("tokens", "perplexity_fp32", "perplexity_int8", "ratio", "agreement")


def gate(model_dir: Path) -> dict[str, float]:
    """Let int8 through or raise ConfigError; says the numbers in one line on stderr. Figures as `accuracy.compare`'s.

    Takes seconds the first time, and a second set of weights in memory; later the record answers.
    """
    figures = report(model_dir)
    numbers = (
        f"int8: perplexity {figures['perplexity_int8']:.2f} against {figures['perplexity_fp32']:.2f} of fp32 "
        f"({figures['ratio'] - 1:+.1%}, limit {accuracy.MAX_PERPLEXITY_RATIO - 1:.0%}), "
        f"greedy agreement {figures['agreement']:.0%}"
    )
    if not figures["ratio"] <= accuracy.MAX_PERPLEXITY_RATIO:  # a ratio that is no number does not pass either
        raise ConfigError(f"weights: int8 is not allowed for {model_dir}: {numbers}; use weights fp32")
    print(f"{numbers}: used", file=sys.stderr, flush=True)
    return figures


def report(model_dir: Path) -> dict[str, float]:
    """What int8 costs this model: from the record if weights and code are those it was made with, else measured."""
    key = _key(model_dir)
    for place in _places(model_dir, key):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(place.read_text())
            if record["key"] == key:
                return {name: float(record["figures"][name]) for name in FIGURES}
    tokenizer = Tokenizer.load(model_dir)
    longest = accuracy.max_tokens(model_dir)
    texts = [tokenizer.encode(text)[:longest] for text in accuracy.english(TEXTS, CHARACTERS)]
    figures = accuracy.compare(model_dir, texts)
    gc.collect()  # both sets of weights go before the one that serves comes
    figures = {name: figures[name] for name in FIGURES}
    _keep(model_dir, key, figures)
    return figures


def _key(model_dir: Path) -> str:
    """Changes with the weights and with any source that decides what int8 computes."""
    stat = (model_dir / "model.safetensors").stat()
    sources = sorted(Path(accuracy.__file__).parent.glob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in [*sources, Path(__file__)])).hexdigest()[:16]
    return f"{stat.st_size}-{stat.st_mtime_ns}-{code}"


def _places(model_dir: Path, key: str) -> Iterator[Path]:
    """Where a record may be, best first: beside the weights, or where the user keeps caches."""
    yield model_dir / RECORD
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(f"{model_dir.resolve()} {key}".encode()).hexdigest()[:16]
    yield user / "gapless" / f"{name}-{RECORD}"


def _keep(model_dir: Path, key: str, figures: dict[str, float]) -> None:
    """Write the record at the first place that takes it, whole or not at all; without one it is measured each time."""
    for place in _places(model_dir, key):
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=place.parent, prefix=f".{RECORD}-", delete=False) as file:
                json.dump({"key": key, "figures": figures}, file, indent=1)
            try:
                os.replace(file.name, place)
            except OSError:
                os.unlink(file.name)
                continue
            return
