"""What a served engine takes and gives, as Triton declares it.

Inputs of a text model: `text`. Of a picture model: `image` (encoded) or `pixels` (uint8 [height, width, 3]). Of any
other: its own. Outputs are the engine's own. Must not know Triton's Python backend.
"""

from __future__ import annotations

from typing import Any

from engines.stamp import Stamp, TensorSpec

TEXT, IMAGE, PIXELS = "text", "image", "pixels"
TYPES = {"float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64", "bool": "TYPE_BOOL"}
TYPES |= {f"{kind}int{bits}": f"TYPE_{kind.upper()}INT{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)}


def served_inputs(stamp: Stamp) -> list[dict[str, Any]]:
    """`name`, `data_type`, `dims` without the batch, `optional` where it is; as pb_utils wants them."""
    if stamp.feed.kind == "text":
        return [{"name": TEXT, "data_type": "TYPE_STRING", "dims": [1]}]
    if stamp.feed.kind == "image":
        return [
            {"name": IMAGE, "data_type": "TYPE_STRING", "dims": [1], "optional": True},
            {"name": PIXELS, "data_type": "TYPE_UINT8", "dims": [-1, -1, 3], "optional": True},
        ]
    return [_declared(tensor) for tensor in stamp.inputs]


def served_outputs(stamp: Stamp) -> list[dict[str, Any]]:
    """The same of what it gives."""
    return [_declared(tensor) for tensor in stamp.outputs]


def _declared(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": TYPES[tensor.dtype], "dims": list(tensor.shape[1:]) or [1]}
