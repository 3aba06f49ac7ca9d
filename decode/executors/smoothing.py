"""Makes a model kinder to int8 activations: large channels are divided down before a product, its weights made up.

The function computed stays the same. Idea: SmoothQuant (Xiao et al. 2023), with alpha = 0.5; the divisors are folded
into what comes before (norms, the up projection), so a step costs nothing more. Must not know how weights are packed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from decode.executors.model import Model, norm
from decode.executors.model_config import ModelConfig
from decode.executors.weights import Layer, Linear, Weights

SAMPLE_TOKENS = 256
SMALLEST = 1e-5  # a channel that never speaks is left to the weights


class _Observed(Model):
    """A model that notes the largest absolute input of every channel of every product."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights, torch.device("cpu"))
        self.divisors: dict[tuple[int, str], Tensor] = {}

    def linear(self, index: int, name: str, linear: Linear, x: Tensor) -> Tensor:
        self.divisors[index, name] = _divisor(x, linear.weight)
        return super().linear(index, name, linear, x)


class Smoothing:
    """Divisors of every channel, found by a forward over random tokens (seeded: the same each time)."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        random = torch.Generator().manual_seed(0)
        length = min(SAMPLE_TOKENS, config.max_position_embeddings)
        tokens = torch.randint(config.vocab_size, (length,), generator=random)
        model = _Observed(config, weights)
        hidden = model.forward(tokens, torch.arange(length), _causal)
        self._divisors = model.divisors
        self._head = _divisor(norm(hidden, weights.norm, config.norm_eps), weights.head)

    def layer(self, index: int, layer: Layer) -> Layer:
        """The same layer, smoothed."""
        qkv, gate_up, down = (self._divisors[index, name] for name in ("qkv", "gate_up", "down"))
        rows = torch.cat((torch.ones_like(down), 1 / down))  # of up only; of down's inputs
        wide = layer.gate_up.weight * gate_up * rows[:, None]
        bias = None if layer.gate_up.bias is None else layer.gate_up.bias * rows
        return replace(
            layer,
            input_norm=layer.input_norm / qkv,
            qkv=Linear(layer.qkv.weight * qkv, layer.qkv.bias),
            mlp_norm=layer.mlp_norm / gate_up,
            gate_up=Linear(wide, bias),
            down=Linear(layer.down.weight * down, layer.down.bias),
        )

    def head(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """The last norm and the head, smoothed."""
        return weights.norm / self._head, weights.head * self._head


def _divisor(x: Tensor, weight: Tensor) -> Tensor:
    """Per channel sqrt(largest input / largest weight), over its mean."""
    ratio = (x.abs().amax(0).clamp(min=SMALLEST) / weight.abs().amax(0).clamp(min=SMALLEST)).sqrt()
    return ratio / ratio.mean()


def _causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed[0].transpose(0, 1)
