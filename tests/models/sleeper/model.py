"""A model that does nothing for a while, for tests of batching: `base` + `row` ms for each row of a batch.

Each answer says when its batch began and ended on the machine's monotonic clock, in ns, and how many rows it had.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.base, self.row = (float(parameters[name]["string_value"]) / 1e3 for name in ("base", "row"))

    def execute(self, requests: list[Any]) -> list[Any]:
        began = time.monotonic_ns()
        sizes = [len(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]
        time.sleep(max(0.0, began / 1e9 + self.base + self.row * sum(sizes) - time.monotonic()))
        seen = np.array([[began, time.monotonic_ns(), sum(sizes)]], dtype=np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("seen", seen.repeat(size, axis=0))]) for size in sizes]
