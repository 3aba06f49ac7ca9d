"""Reads the weights of a Llama-family model from safetensors, with Q/K/V and gate/up fused.

Must not know pages, plans or devices' kernels: it hands over plain tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from safetensors import safe_open

from decode.executors.model_config import ModelConfig


class WeightsError(ValueError):
    """A weight file that is missing or does not fit its config.json; one line naming the file and the tensor."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Linear:
    """`weight` [out, in], `bias` [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer block. `q_norm` and `k_norm` [head_dim] only with qk_norm."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model. `head` is `embed` itself when the embeddings are tied; `layers` may read a layer when asked."""

    embed: torch.Tensor  # [vocab, hidden]
    layers: Sequence[Layer]
    norm: torch.Tensor  # [hidden]
    head: torch.Tensor  # [vocab, hidden]


class _Shards:
    """Tensors by name over one or several safetensors files."""

    def __init__(self, model_dir: Path, dtype: torch.dtype) -> None:
        index = model_dir / "model.safetensors.index.json"
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else None
        self._dtype = dtype
        self._where: dict[str, tuple[Any, Path]] = {}
        for name in names or ["model.safetensors"]:
            path = model_dir / name
            if not path.exists():
                raise WeightsError(f"{path}: no such file; build the model first (gapless build)")
            shard = safe_open(str(path), "pt")
            self._where |= dict.fromkeys(shard.keys(), (shard, path))
        self._dir = model_dir

    def get(self, name: str, *shape: int) -> torch.Tensor:
        if name not in self._where:
            raise WeightsError(f"{self._dir}: tensor {name} is missing")
        shard, path = self._where[name]
        tensor: torch.Tensor = shard.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{path}: tensor {name} is {tuple(tensor.shape)}, config.json asks for {shape}")
        return tensor.to(self._dtype)

    def linear(self, parts: dict[str, int], inner: int, bias: bool) -> Linear:
        """Several projections of the same input, stacked. `parts`: name → rows."""
        weight = torch.cat([self.get(f"{name}.weight", rows, inner) for name, rows in parts.items()])
        biases = torch.cat([self.get(f"{name}.bias", rows) for name, rows in parts.items()]) if bias else None
        return Linear(weight, biases)


class _Layers(Sequence[Layer]):
    """Layers read from their files each time they are asked for, so that few of them are in memory at once."""

    def __init__(self, shards: _Shards, config: ModelConfig) -> None:
        self._shards, self._config = shards, config

    def __len__(self) -> int:
        return self._config.num_layers

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return _layer(self._shards, self._config, f"model.layers.{index}.")


def load(model_dir: Path, config: ModelConfig, dtype: torch.dtype) -> Weights:
    """Tensors on the CPU as `dtype`, layers when asked for. Raises WeightsError on a missing or misshapen one."""
    shards = _Shards(model_dir, dtype)
    embed = shards.get("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    norm = shards.get("model.norm.weight", config.hidden_size)
    tied = config.tie_embeddings
    head = embed if tied else shards.get("lm_head.weight", config.vocab_size, config.hidden_size)
    return Weights(embed, _Layers(shards, config), norm, head)


def _layer(shards: _Shards, config: ModelConfig, at: str) -> Layer:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attn, mlp = f"{at}self_attn.", f"{at}mlp."
    return Layer(
        input_norm=shards.get(f"{at}input_layernorm.weight", hidden),
        qkv=shards.linear({f"{attn}q_proj": heads, f"{attn}k_proj": kv, f"{attn}v_proj": kv}, hidden, config.qkv_bias),
        q_norm=shards.get(f"{attn}q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=shards.get(f"{attn}k_norm.weight", config.head_dim) if config.qk_norm else None,
        out=shards.linear({f"{attn}o_proj": hidden}, heads, config.o_bias),
        mlp_norm=shards.get(f"{at}post_attention_layernorm.weight", hidden),
        gate_up=shards.linear({f"{mlp}gate_proj": inner, f"{mlp}up_proj": inner}, hidden, config.mlp_bias),
        down=shards.linear({f"{mlp}down_proj": hidden}, inner, config.mlp_bias),
    )


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Rotary frequencies [head_dim / 2], float32, stretched as `config.rope_scaling` says (see RopeScaling)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    stretched = plain / scaling.factor
    if scaling.type == "linear":
        return stretched
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)  # waves in the original context
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * stretched + share * plain
