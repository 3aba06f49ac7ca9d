"""What Triton loads: hands requests to decode.triton_io and says in one line why it cannot."""

from __future__ import annotations

import os
import sys
from typing import Any

import triton_python_backend_utils as pb_utils

SWITCH_INTERVAL = 0.0005  # seconds; a step that wants to begin must not wait Python's 5 ms for the sending thread
INSTALL = "in the Python that Triton runs: pip install 'gapless[serve]'"


class TritonPythonModel:
    """Decoupled: `execute` takes requests and returns at once."""

    def initialize(self, args: dict[str, str]) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        # Read when OpenMP is loaded, with torch: between two steps its threads are to sleep, since the cores they would
        # spin on are those that send answers.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            from decode import stub, triton_io
            from decode.assembly import build_service
        except ModuleNotFoundError as error:
            raise pb_utils.TritonModelException(f"{error.name} is not installed; {INSTALL}") from error
        folder = stub.model_dir(args)
        if not (folder / "config.json").exists():
            name = args["model_name"]
            raise pb_utils.TritonModelException(f"{folder} holds no weights; run gapless build {name}")
        try:
            stub.check_numpy()
            options = triton_io.options_from(args)
            service = build_service(folder, options)
        except (ValueError, RuntimeError, OSError) as error:
            what = str(error) if hasattr(error, "exit_status") else f"{type(error).__name__}: {error}"
            raise pb_utils.TritonModelException(what) from error
        self.model = triton_io.ChatModel(args["model_name"], service, options)

    def execute(self, requests: list[Any]) -> None:
        self.model.execute(requests)

    def is_ready(self) -> bool:
        return self.model.is_ready()

    def finalize(self) -> None:
        if hasattr(self, "model"):
            self.model.close()
