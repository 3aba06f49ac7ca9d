"""A model for tests of what Triton does: answers with how many requests its batch had, after `seconds`.

`runs` says how many batches there were so far. A decoupled one returns at once and answers `seconds` later.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.seconds = float(config.get("parameters", {}).get("seconds", {}).get("string_value", 0))
        self.runs = 0

    def execute(self, requests: list[Any]) -> list[Any] | None:
        self.runs += 1
        if self.decoupled:
            for request in requests:
                threading.Timer(self.seconds, self.send, (request.get_response_sender(),)).start()
            return None
        time.sleep(self.seconds)
        return [self.answer(request.inputs()[0].as_numpy().shape, len(requests)) for request in requests]

    def answer(self, shape: tuple[int, ...], size: int) -> Any:
        counts = {"out": size, "runs": self.runs}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.full(shape, count, dtype=np.int32)) for name, count in counts.items()]
        )

    def send(self, sender: Any) -> None:
        sender.send(self.answer((1, 1), 1), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
