"""KV pages in plain torch tensors, and two ways to attend over them: torch's kernel in place, or by gathering.

The kernel has not run on a GPU yet. Must not know weights, plans beyond their copies, or how steps are captured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from decode.executors.batch import Batch
from decode.executors.host_pages import HostPages
from decode.executors.model_config import ModelConfig
from decode.plan import Copy, Swap


@dataclass(frozen=True, slots=True)
class Inputs:
    """A batch on a device. N tokens, C chunks, P pages in the table's rows; names and meaning as in Batch."""

    tokens: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    slots: Tensor  # [N] int64
    first_row: Tensor  # [C + 1] int32
    keys: Tensor  # [C] int32
    pages: Tensor  # [C, P] int32
    draw_rows: Tensor  # int64
    spans: tuple[tuple[int, int, int], ...]  # first row, last row + 1 and keys of each chunk

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> Inputs:
        names = ("tokens", "positions", "slots", "first_row", "keys", "pages", "draw_rows")
        narrow = ("first_row", "keys", "pages")
        arrays = [torch.from_numpy(getattr(batch, n)).to(torch.int32 if n in narrow else torch.int64) for n in names]
        first = batch.first_row.tolist()
        spans = tuple(zip(first[:-1], first[1:], batch.keys.tolist(), strict=True))
        return cls(**{n: array.to(device) for n, array in zip(names, arrays, strict=True)}, spans=spans)

    @property
    def longest(self) -> int:
        """Tokens of the longest chunk."""
        return max(last - first for first, last, _ in self.spans)

    def refill(self, other: Inputs) -> None:
        """Copy tensors of the same shapes into these."""
        for name in ("tokens", "positions", "slots", "first_row", "keys", "pages", "draw_rows"):
            getattr(self, name).copy_(getattr(other, name))


# (q [N, heads, head_dim], keys and values of a layer [2, pages, page_size, kv_heads, head_dim], inputs) -> like q
Attention = Callable[[Tensor, Tensor, Inputs], Tensor]


class PagedKV:
    """Keys and values [layers, 2, pages, page_size, kv_heads, head_dim]."""

    def __init__(
        self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device,
        host_pages: int = 0,
    ) -> None:  # fmt: skip
        shape = (config.num_layers, 2, num_pages, page_size, config.num_kv_heads, config.head_dim)
        self.pages = torch.zeros(shape, dtype=dtype, device=device)
        self._host = HostPages(self.pages, 2, host_pages)
        self.bytes_per_token = self.pages[:, :, 0].nbytes // page_size

    def copy(self, copies: tuple[Copy | Swap, ...]) -> None:
        """Do the copies of a plan, in order."""
        self._host.in_order(copies, self._copy)

    def _copy(self, copy: Copy) -> None:
        src, dst, tokens = copy
        self.pages[:, :, dst, :tokens] = self.pages[:, :, src, :tokens]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put k and v [N, kv_heads, head_dim] of a layer at slots [N]."""
        self.pages[layer, 0].flatten(0, 1)[slots] = k
        self.pages[layer, 1].flatten(0, 1)[slots] = v


def gather_attention(q: Tensor, kv: Tensor, inputs: Inputs) -> Tensor:
    """Causal attention over gathered pages: the stand-in where no kernel reads pages in place.

    Chunks of one token each go in one call whose shapes depend on shapes only, so that a CUDA graph can hold it.
    """
    if inputs.longest == 1:
        return _gathered(q[:, None], kv, inputs.pages, inputs.keys)[:, 0]
    out, page_size = torch.empty_like(q), kv.shape[2]
    for c, (first, last, keys) in enumerate(inputs.spans):
        pages = inputs.pages[c : c + 1, : -(-keys // page_size)]
        out[first:last] = _gathered(q[None, first:last], kv, pages, inputs.keys[c : c + 1])[0]
    return out


def _gathered(q: Tensor, kv: Tensor, pages: Tensor, keys: Tensor) -> Tensor:
    """Attention of q [C, L, heads, head_dim], the last L of keys [C] tokens, over pages [C, P]. Same shape as q."""
    k, v = kv[:, pages].flatten(2, 3).transpose(2, 3)
    length = q.shape[1]
    at = keys[:, None] - length + torch.arange(length, device=q.device)
    mask = torch.arange(k.shape[2], device=q.device) <= at[:, :, None]
    mixed = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, mask[:, None], enable_gqa=True)
    return mixed.transpose(1, 2)


def kernel_attention(q: Tensor, kv: Tensor, inputs: Inputs) -> Tensor:
    """Causal attention by torch's `varlen_attn`, which reads pages in place. Has not run on a GPU yet.

    The causal mask is aligned to the last key of each chunk. The longest key count is given as what the page table
    can hold: a CUDA graph keeps that number, while `keys` are read anew at each replay.
    """
    from torch.nn.attention.varlen import varlen_attn  # absent in older versions of torch: see pick_attention

    room = inputs.pages.shape[1] * kv.shape[2]
    mixed = varlen_attn(
        q, kv[0], kv[1], inputs.first_row, None, inputs.longest, room,
        window_size=(-1, 0), enable_gqa=True, seqused_k=inputs.keys, block_table=inputs.pages,
    )  # fmt: skip
    assert isinstance(mixed, Tensor)  # a tuple only where more was asked for
    return mixed


def pick_attention(config: ModelConfig, kv: Tensor, scratch_page: int) -> Attention:
    """The kernel where it runs on pages like kv's, else the stand-in.

    Its signature alone does not tell: FlashAttention 2 refuses small pages or all, depending on the version of torch
    (FlashAttention 3, once installed and activated, takes any size), and no version takes float32. So it is tried.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return gather_attention
    if "block_table" not in inspect.signature(varlen_attn).parameters:
        return gather_attention
    one, none = torch.ones(1, dtype=torch.int64, device=kv.device), torch.zeros(1, dtype=torch.int64, device=kv.device)
    rows = torch.arange(2, dtype=torch.int32, device=kv.device)
    pages = torch.full((1, 1), scratch_page, dtype=torch.int32, device=kv.device)
    q = torch.zeros(1, config.num_heads, config.head_dim, dtype=kv.dtype, device=kv.device)
    try:
        kernel_attention(q, kv, Inputs(none, none, none, rows, one.int(), pages, none, ((0, 1, 1),))).cpu()
    except RuntimeError:  # also what a missing kernel or a refused argument raises
        return gather_attention
    return kernel_attention
