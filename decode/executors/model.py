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
            qkv = self.linear(index, "qkv", layer.qkv, norm(hidden, layer.input_norm, eps))
            q, k, v = qkv.view(-1, heads + 2 * kv, config.head_dim).split([heads, kv, kv], 1)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = norm(q, layer.q_norm, eps), norm(k, layer.k_norm, eps)
            out = attend(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
            hidden = hidden + self.linear(index, "out", layer.out, out.flatten(1))
            gate_up = self.linear(index, "gate_up", layer.gate_up, norm(hidden, layer.mlp_norm, eps))
            gate, up = gate_up.chunk(2, -1)
            hidden = hidden + self.linear(index, "down", layer.down, functional.silu(gate) * up)
        return hidden

    def linear(self, index: int, name: str, linear: Linear, x: Tensor) -> Tensor:
        """The product of layer `index` that is called `name` in Layer."""
        return functional.linear(x, linear.weight, linear.bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [n, vocab] of the given hidden states [n, hidden]."""
        return functional.linear(norm(hidden, self.weights.norm, self.config.norm_eps), self.weights.head).float()


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, computed in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout of Hugging Face checkpoints."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
