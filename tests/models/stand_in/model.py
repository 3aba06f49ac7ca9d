"""A model that answers in one piece, for tests: says how many bytes it was sent, after `seconds` for each batch.

It takes what its configuration says: texts, pictures or arrays. A text that holds RAISE fails, others of its batch do
not; so do a tier that it does not know and a picture that is no JPEG.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

TIERS = ("interactive", "batch")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.seconds = float(json.loads(args["model_config"])["parameters"]["seconds"]["string_value"])

    def execute(self, requests: list[Any]) -> list[Any]:
        time.sleep(self.seconds)
        return [answer(request) for request in requests]


def answer(request: Any) -> Any:
    tier = json.loads(request.parameters())["tier"]
    if tier not in TIERS:
        return failure(f"tier '{tier}' is not allowed; {', '.join(TIERS)}")
    [tensor] = request.inputs()
    values = tensor.as_numpy()
    sent = values.nbytes if values.dtype != object else len(values[0, 0])
    if tensor.name() == "image" and values[0, 0][:2] != b"\xff\xd8":
        return failure("not a JPEG")
    if tensor.name() == "text" and b"RAISE" in values[0, 0]:
        return failure("planted failure")
    return pb_utils.InferenceResponse([pb_utils.Tensor("bytes", np.full((len(values), 1), sent, dtype=np.int64))])


def failure(why: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
