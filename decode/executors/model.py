"""The Llama-family forward in plain torch: norms, rotary embedding, fused projections, gated MLP.

Runs on any device; where keys and values live is the business of the `attend` argument.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from decode.executors.model_config import ModelConfig
from decode.executors.weights import Linear, Weights, inverse_frequencies

# (layer, q [N, heads, head_dim], k and v [N, kv_heads, head_dim]) -> attention output like q
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Model:
    """Weights on a device, and their forward."""

    def __init__(self, config: ModelConfig, weights: Weights, device: torch.device) -> None:
        self.config, self.weights = config, weights
        self._frequencies = inverse_frequencies(config).to(device)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [N, hidden] before the last norm, of tokens [N] at positions [N]."""
        config, eps = self.config, self.config.norm_eps
        hidden = self.weights.embed[tokens]
        angles = positions[:, None].float() * self._frequencies
        cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
        heads, kv = config.num_heads, config.num_kv_heads
        for index, layer in enumerate(self.weights.layers):
            qkv = _linear(_norm(hidden, layer.input_norm, eps), layer.qkv)
            q, k, v = qkv.view(-1, heads + 2 * kv, config.head_dim).split([heads, kv, kv], 1)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = _norm(q, layer.q_norm, eps), _norm(k, layer.k_norm, eps)
            out = attend(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
            hidden = hidden + _linear(out.flatten(1), layer.out)
            gate, up = _linear(_norm(hidden, layer.mlp_norm, eps), layer.gate_up).chunk(2, -1)
            hidden = hidden + _linear(functional.silu(gate) * up, layer.down)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [n, vocab] of the given hidden states [n, hidden]."""
        normed = _norm(hidden, self.weights.norm, self.config.norm_eps)
        return functional.linear(normed, self.weights.head).float()


def _linear(x: Tensor, layer: Linear) -> Tensor:
    return functional.linear(x, layer.weight, layer.bias)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout of Hugging Face checkpoints."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
