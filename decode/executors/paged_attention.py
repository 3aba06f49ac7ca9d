"""KV pages in plain torch tensors, and attention over them by gathering: any device, any dtype, no kernel needed.

The stand-in where no kernel reads pages in place, and what such kernels are compared with.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from decode.executors.batch import Batch
from decode.executors.model_config import ModelConfig
from decode.plan import Copy


class PagedKV:
    """Keys and values [layers, 2, pages, page_size, kv_heads, head_dim]."""

    def __init__(
        self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_layers, 2, num_pages, page_size, config.num_kv_heads, config.head_dim)
        self.pages = torch.zeros(shape, dtype=dtype, device=device)
        self.page_size = page_size

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Do the copies of a plan, in order."""
        for src, dst, tokens in copies:
            self.pages[:, :, dst, :tokens] = self.pages[:, :, src, :tokens]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put k and v [N, kv_heads, head_dim] of a layer at slots [N]."""
        self.pages[layer, 0].flatten(0, 1)[slots] = k
        self.pages[layer, 1].flatten(0, 1)[slots] = v


def gather_attention(kv: PagedKV, layer: int, q: Tensor, batch: Batch) -> Tensor:
    """Causal attention of q [N, heads, head_dim], chunk by chunk, over gathered pages. Same shape as q."""
    out = torch.empty_like(q)
    for c, (first, last) in enumerate(zip(batch.first_row[:-1], batch.first_row[1:], strict=True)):
        keys = int(batch.keys[c])
        pages = torch.from_numpy(batch.pages[c, : -(-keys // kv.page_size)]).to(q.device)
        k, v = kv.pages[layer][:, pages].flatten(1, 2)[:, :keys].transpose(1, 2)
        at = torch.arange(keys - (last - first), keys, device=q.device)
        mask = torch.arange(keys, device=q.device) <= at[:, None]
        rows = q[first:last].transpose(0, 1)
        mixed = functional.scaled_dot_product_attention(rows[None], k[None], v[None], mask, enable_gqa=True)
        out[first:last] = mixed[0].transpose(0, 1)
    return out
