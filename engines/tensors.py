"""The tensors of a built engine as Triton declares them, by what its stamp says. Must not know Triton's own code.

Inputs of a text model: `text`. Of a picture model: `image` (encoded) or `pixels` (uint8 [height, width, 3]). Of any
other: its own. Outputs are the engine's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.stamp import Stamp, TensorSpec

TEXT, IMAGE, PIXELS = "text", "image", "pixels"
TYPES = {"float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64", "bool": "TYPE_BOOL"}
TYPES |= {f"{kind}int{bits}": f"TYPE_{kind.upper()}INT{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, slots=True)
class Declared:
    """One input or output; dims without the batch, -1 is any size."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


def inputs(stamp: Stamp) -> tuple[Declared, ...]:
    """What a request may hold."""
    if stamp.feed.kind == "text":
        return (Declared(TEXT, "TYPE_STRING", (1,)),)
    if stamp.feed.kind == "image":
        encoded = Declared(IMAGE, "TYPE_STRING", (1,), optional=True)
        return encoded, Declared(PIXELS, "TYPE_UINT8", (-1, -1, 3), optional=True)
    return tuple(_declared(tensor) for tensor in stamp.inputs)


def outputs(stamp: Stamp) -> tuple[Declared, ...]:
    """What an answer holds."""
    return tuple(_declared(tensor) for tensor in stamp.outputs)


def _declared(tensor: TensorSpec) -> Declared:
    return Declared(tensor.name, TYPES[tensor.dtype], tensor.shape[1:] or (1,))
