"""From a network to a checked ONNX file in fp32, and the same checks for a file that came as ONNX.

Checked means: against torch at several shapes, batch 1 and the largest included; a file that has no network behind it,
against itself: a batch must give what its items give alone.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import torch
from numpy.typing import NDArray

from builders.errors import BuildError
from builders.networks import Network
from engines.errors import EngineError
from engines.session import OnnxSession

OPSET = 20  # Gelu is one operator from here on; TensorRT 10 and 11 parse it
OLDEST = 13  # opset: DequantizeLinear has an axis from here on
TOLERANCE = 1e-4  # of the largest output: sums in another order differ by that much in float32


def export(network: Network, path: Path, max_batch: int) -> float:
    """Write `network` to `path`; the largest difference to torch, relative to the largest output. Raises BuildError."""
    batch = torch.export.Dim("batch", min=1, max=max(2, max_batch))
    length = torch.export.Dim("length", min=1, max=max(2, network.feed.max_length))
    shapes = [{0: batch, 1: length} if name in network.lengths else {0: batch} for name in network.example]
    try:
        with _silence():
            torch.onnx.export(
                network.module,
                tuple(network.example.values()),
                f=str(path),
                dynamo=True,
                dynamic_shapes=tuple(shapes),
                input_names=list(network.example),
                output_names=list(network.outputs),
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter wraps what its passes raise
        reason = error.__cause__ or error
        raise BuildError(f"cannot be exported to ONNX: {type(reason).__name__}: {reason}") from None
    session = check_file(path)
    difference = _compare(network, session, max_batch)
    inputs = _random(network, 3, min(7, network.feed.max_length))
    check_batching("the model", session, {name: tensor.numpy() for name, tensor in inputs.items()})
    return difference


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporter tells its progress and the state of optional packages on every channel there is."""
    noisy = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in noisy]
    for logger in noisy:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)


def _compare(network: Network, session: OnnxSession, max_batch: int) -> float:
    worst = 0.0
    lengths = sorted({1, 7, network.feed.max_length}) if network.lengths else [0]
    for rows in sorted({1, 3, max_batch}):
        for length in lengths:
            inputs = _random(network, rows, length)
            try:
                with torch.no_grad():
                    result = network.module(*inputs.values())
            except Exception as error:  # whatever a module raises
                told = f"{rows} items" + (f" of length {length}" if length else "")
                raise BuildError(f"the model cannot compute {told}: {type(error).__name__}: {error}") from None
            wanted = (
                [result] if isinstance(result, torch.Tensor) else list(getattr(result, "values", lambda r=result: r)())
            )
            got = session.run({name: tensor.numpy() for name, tensor in inputs.items()})
            for name, tensor in zip(network.outputs, wanted, strict=True):
                where = f"output {name} at batch {rows}" + (f", length {length}" if length else "")
                worst = max(worst, _difference(tensor.numpy(), got[name], where))
    return worst


def _difference(wanted: NDArray[Any], got: NDArray[Any], where: str) -> float:
    scale = max(float(np.abs(wanted).max()), 1e-6)
    found = float(np.abs(wanted.astype(np.float64) - got).max()) / scale
    if not found <= TOLERANCE:
        raise BuildError(f"the ONNX export differs from torch in {where} by {found:.2g} of it; allowed: {TOLERANCE:g}")
    return found


def _random(network: Network, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of other shapes than the example's: its values drawn anew, its last text half padding."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    made = {}
    for name, tensor in network.example.items():
        shape = [rows, *tensor.shape[1:]]
        if name in network.lengths:
            shape[1] = length
        if name == "attention_mask":
            made[name] = torch.ones(shape, dtype=tensor.dtype)
            made[name][-1, length // 2 + 1 :] = 0
        elif tensor.is_floating_point():
            made[name] = torch.randn(shape, generator=generator, dtype=tensor.dtype)
        else:
            made[name] = tensor.reshape(-1)[torch.randint(tensor.numel(), shape, generator=generator)]
    return made


def check_file(path: Path) -> OnnxSession:
    """A session on an ONNX file whose inputs and outputs all have a batch that varies. Raises BuildError."""
    try:
        onnx.checker.check_model(str(path))
        session = OnnxSession(path)
    except FileNotFoundError:
        raise BuildError(f"{path}: no such file") from None
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror or error}") from None
    except EngineError as error:
        raise BuildError(str(error)) from None
    except Exception as error:  # protobuf's and the checker's
        raise BuildError(f"{path}: is no valid ONNX model: {error}") from None
    for tensor in (*session.inputs, *session.outputs):
        if not tensor.shape or tensor.shape[0] != -1:
            found = f"is {list(tensor.shape)}" if tensor.shape else "has no dimensions"
            raise BuildError(f"{path}: {tensor.name} {found}; allowed: a first dimension that varies, the batch")
    return session


def check_batching(what: object, session: OnnxSession, feed: Mapping[str, NDArray[Any]]) -> None:
    """Raise BuildError unless a batch gives what its rows give alone."""
    together = session.run(feed)
    rows = len(next(iter(feed.values())))
    alone = [session.run({name: array[row : row + 1] for name, array in feed.items()}) for row in range(rows)]
    for name, whole in together.items():
        parts = np.concatenate([found[name] for found in alone]).astype(np.float64)
        if not np.isfinite(parts).all():
            raise BuildError(f"{what}: output {name} is NaN or infinite on plain random input; allowed: finite outputs")
        scale = max(float(np.abs(parts).max()), 1e-6)
        if whole.shape != parts.shape or not float(np.abs(whole - parts).max()) / scale <= TOLERANCE:
            raise BuildError(f"{what}: output {name} of a batch differs from its items alone: it cannot be batched")


def normalized(path: Path) -> onnx.ModelProto:
    """The model with constants folded and every node named, as precision is decided node by node. Raises BuildError."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="gapless-") as folder:
        made = Path(folder) / "model.onnx"
        try:
            quant_pre_process(_recent(path, Path(folder) / "recent.onnx"), made, skip_symbolic_shape=True)
            model = onnx.load(made)
        except Exception as error:  # of the optimizer and of shape inference
            raise BuildError(f"{path}: cannot be prepared: {error}") from None
    taken: set[str] = set()
    for at, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{at}"
        taken.add(node.name)
    return model


def _recent(path: Path, made: Path) -> Path:
    """The model in one file, in the oldest opset that has scales per channel or a later one."""
    model = onnx.load(path)
    versions = [opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")]
    if versions and versions[0] < OLDEST:
        model = onnx.version_converter.convert_version(model, OLDEST)
    onnx.save(model, made)
    return made
