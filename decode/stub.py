"""What every model behind Triton's Python stub needs, whichever room it runs: a numpy that works, its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class StubMismatch(RuntimeError):
    """This Python environment does not fit the stub; one line."""

    exit_status = 2


def check_numpy() -> None:
    """Refuse a numpy that this stub does not understand. Raises StubMismatch.

    A stub built for numpy 1 reads numpy 2 arrays with wrong strides: inputs arrive as zeros, without an error. The same
    happens to a tensor on its way through DLPack, which needs no request to be seen.
    """
    sent = np.arange(1, 9, dtype=np.int64)
    got = pb_utils.Tensor.from_dlpack("probe", pb_utils.Tensor("probe", sent).to_dlpack()).as_numpy()
    if got.shape != sent.shape or not (got == sent).all():
        raise StubMismatch(
            f"numpy {np.__version__} does not work with this Triton's Python stub (tensors arrive corrupted): "
            "pip install 'numpy<2'"
        )


def model_dir(args: Mapping[str, str]) -> Path:
    """The folder of the version being loaded."""
    return Path(args["model_repository"]) / args["model_version"]
