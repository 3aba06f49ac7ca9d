"""What an executor must know of a model before it reads a weight: the reader of a built `config.json`.

`gapless build` writes that file in one normal form for every family, so nothing here asks which family it is: each
difference between families is a field. Standard library only; must not know tensors, GGUF or tokenizers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Precision = Literal["fp32", "bf16", "fp16", "int8"]  # in which weights are held while they serve
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of weights as stored


class ModelError(ValueError):
    """A built model that cannot be served; one line, names the file, the field and what is allowed."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched; names and meaning as in Hugging Face configs.

    linear: every frequency is divided by `factor`.
    llama3: wavelengths over original/low_freq_factor are divided by `factor`, those under original/high_freq_factor
    stay, those between are blended (Llama 3.1 reference code, `apply_scaling`).
    """

    type: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer: RMSNorm, rotary embeddings (half-split pairs), SwiGLU, grouped-query attention.

    Weights carry Hugging Face names (`model.layers.N.self_attn.q_proj.weight` …), each linear [out, in].
    `qk_norm`: q and k pass an RMSNorm over head_dim (`self_attn.q_norm`, `k_norm`) before the rotation.
    `tie_embeddings`: there is no `lm_head.weight`, the embedding serves. Attention is never windowed: a model
    whose window is shorter than its context is refused when it is built.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_embeddings: bool
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"  # of the stored weights: float32, bfloat16 or float16

    @classmethod
    def read(cls, directory: Path | str) -> ModelConfig:
        """Read `config.json` of a directory that `gapless build` wrote. Raises ModelError."""
        path = Path(directory) / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(f"{path}: no such file; run `gapless build` first") from None
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error}") from None
        if not isinstance(raw, dict):
            raise ModelError(f"{path}: must hold a JSON object")
        return _Fields(path, raw).config()

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of K and V that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes

    @property
    def num_parameters(self) -> int:
        """Weights in the model; a tied embedding counts once."""
        hidden, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * self.intermediate_size + 2 * hidden
        layer += (q + 2 * kv) * self.qkv_bias + hidden * self.o_bias + 2 * self.head_dim * self.qk_norm
        layer += (2 * self.intermediate_size + hidden) * self.mlp_bias
        embeddings = self.vocab_size * hidden * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + embeddings + hidden

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights as stored."""
        return self.num_parameters * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to the raw JSON; every refusal names file and field."""

    path: Path
    raw: dict[str, Any]

    def refuse(self, field: str, allowed: str) -> ModelError:
        found = repr(self.raw[field]) if field in self.raw else "missing"
        return ModelError(f"{self.path}: {field}: {found}; {allowed}")

    def count(self, field: str) -> int:
        value = self.raw.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(field, "an integer >= 1")
        return value

    def real(self, field: str) -> float:
        value = self.raw.get(field)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise self.refuse(field, "a number > 0")
        return float(value)

    def flag(self, field: str) -> bool:
        value = self.raw.get(field)
        if not isinstance(value, bool):
            raise self.refuse(field, "true or false")
        return value

    def token_ids(self, field: str, vocab_size: int) -> tuple[int, ...]:
        value = self.raw.get(field)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size for i in ids):
            raise self.refuse(field, f"token ids from 0 to {vocab_size - 1}")
        return tuple(ids)

    def rope_scaling(self) -> RopeScaling | None:
        value = self.raw.get("rope_scaling")
        if value is None:
            return None
        kind = value.get("rope_type") if isinstance(value, dict) else None
        if kind not in ("linear", "llama3"):
            raise self.refuse("rope_scaling", "null, or rope_type linear or llama3")
        inner = _Fields(self.path, value)
        if kind == "linear":
            return RopeScaling("linear", inner.real("factor"))
        return RopeScaling(
            "llama3",
            inner.real("factor"),
            inner.real("low_freq_factor"),
            inner.real("high_freq_factor"),
            inner.count("original_max_position_embeddings"),
        )

    def config(self) -> ModelConfig:
        vocab_size, heads, kv_heads = (
            self.count(field) for field in ("vocab_size", "num_attention_heads", "num_key_value_heads")
        )
        if heads % kv_heads:
            raise self.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
        if self.count("head_dim") % 2:
            raise self.refuse("head_dim", "an even number")
        if self.raw.get("sliding_window") is not None:
            raise self.refuse("sliding_window", "null: sliding windows are not supported")
        if self.raw.get("hidden_act") != "silu":
            raise self.refuse("hidden_act", "'silu'")
        if self.raw.get("dtype") not in DTYPE_BYTES:
            raise self.refuse("dtype", " or ".join(DTYPE_BYTES))
        return ModelConfig(
            vocab_size=vocab_size,
            hidden_size=self.count("hidden_size"),
            num_layers=self.count("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=self.count("head_dim"),
            intermediate_size=self.count("intermediate_size"),
            norm_eps=self.real("rms_norm_eps"),
            rope_theta=self.real("rope_theta"),
            max_position_embeddings=self.count("max_position_embeddings"),
            tie_embeddings=self.flag("tie_word_embeddings"),
            rope_scaling=self.rope_scaling(),
            qkv_bias=self.flag("qkv_bias"),
            o_bias=self.flag("o_bias"),
            mlp_bias=self.flag("mlp_bias"),
            qk_norm=self.flag("qk_norm"),
            bos_token_id=next(iter(self.token_ids("bos_token_id", vocab_size)), None),
            eos_token_ids=self.token_ids("eos_token_id", vocab_size),
            dtype=self.raw["dtype"],
        )
