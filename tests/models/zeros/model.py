"""A model that answers zeros of whatever outputs its configuration declares, a row for each row of its first input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.config = json.loads(args["model_config"])

    def execute(self, requests: list[Any]) -> list[Any]:
        return [
            pb_utils.InferenceResponse([self.zeros(o, request) for o in self.config["output"]]) for request in requests
        ]

    def zeros(self, output: dict[str, Any], request: Any) -> Any:
        rows = [len(request.inputs()[0].as_numpy())] if self.config["max_batch_size"] else []
        shape = [*rows, *(max(1, int(size)) for size in output["dims"])]
        return pb_utils.Tensor(output["name"], np.zeros(shape, pb_utils.triton_string_to_numpy(output["data_type"])))
