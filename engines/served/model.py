"""What Triton loads: hands batches to engines.triton_io and says in one line why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

INSTALL = "in the Python that Triton runs: pip install 'gapless[serve]'"
try:
    from decode import stub
    from engines import triton_io
except ModuleNotFoundError as missing:
    raise pb_utils.TritonModelException(f"{missing.name} is not installed; {INSTALL}") from missing


class TritonPythonModel:
    """Answers every request in one piece; Triton's dynamic batcher makes the batches."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        try:
            return triton_io.complete(auto_complete_model_config, Path(__file__).parent)
        except ValueError as error:
            raise pb_utils.TritonModelException(str(error)) from error

    def initialize(self, args: dict[str, str]) -> None:
        try:
            stub.check_numpy()
            self.model = triton_io.EngineModel(args)
        except (ValueError, RuntimeError, OSError) as error:
            what = str(error) if hasattr(error, "exit_status") else f"{type(error).__name__}: {error}"
            raise pb_utils.TritonModelException(what) from error

    def execute(self, requests: list[Any]) -> list[Any]:
        return self.model.execute(requests)

    def is_ready(self) -> bool:
        return self.model.is_ready()

    def finalize(self) -> None:
        if hasattr(self, "model"):
            self.model.close()
