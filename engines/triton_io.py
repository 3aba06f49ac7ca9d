"""The edge to Triton for engines: requests of the dynamic batcher in, responses out. Knows pb_utils' tensors, no model.

What the tensors are called is engines.tensors'.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from decode.stub import model_dir
from decode.supervision import Link, Report
from engines import tensors
from engines.errors import EngineError, ItemError
from engines.runner import Result, Runner
from engines.stamp import Stamp

HEARTBEAT = 0.5  # seconds between reports to the launcher


def complete(config: Any, folder: Path) -> Any:
    """What config.pbtxt leaves out: inputs, outputs and the largest batch, from the stamp.

    Raises EngineError when it says otherwise than the stamp, as one does that was generated for another engine.
    """
    stamp = Stamp.read(folder)
    inputs, outputs = tensors.inputs(stamp), tensors.outputs(stamp)
    given = config.as_dict()
    for kind, ours in (("input", inputs), ("output", outputs)):
        known = [tensor.name for tensor in ours]
        if strange := [tensor["name"] for tensor in given.get(kind, []) if tensor["name"] not in known]:
            raise EngineError(
                f"{kind}: {strange[0]} is not allowed; this engine has {', '.join(known)}: run gapless generate again"
            )
    for tensor in inputs:
        config.add_input(asdict(tensor) | {"dims": list(tensor.dims)})
    for tensor in outputs:
        config.add_output({"name": tensor.name, "data_type": tensor.data_type, "dims": list(tensor.dims)})
    wanted = given.get("max_batch_size", 0)
    if wanted > stamp.max_batch_size:
        raise EngineError(f"max_batch_size: {wanted} is not allowed; this engine was built for {stamp.max_batch_size}")
    if not wanted:  # a smaller one may be wanted
        config.set_max_batch_size(stamp.max_batch_size)
    config.set_dynamic_batching()
    return config


def threads_of(args: Mapping[str, str]) -> int:
    """The cores, shared out among the instances of the model: each computes by itself."""
    groups = json.loads(args["model_config"]).get("instance_group", [])
    instances = sum(int(group.get("count", 1)) for group in groups)
    return max(1, len(os.sched_getaffinity(0)) // max(1, instances))


class EngineModel:
    """A runner behind Triton. Ready means warm: it has computed before it is there."""

    def __init__(self, args: Mapping[str, str]) -> None:
        """As Triton describes the instance. Raises EngineError when the engine cannot be used here."""
        self._name = args["model_name"]
        self._failure: str | None = None
        if args["model_instance_kind"] == "GPU":
            import torch

            torch.cuda.set_device(int(args["model_instance_device_id"]))
        self._runner = Runner(model_dir(args), threads_of(args))
        self._stop = threading.Event()
        self._link = Link.from_environment(lambda seconds: None)
        self._report()
        self._heart = threading.Thread(target=self._beat, name="gapless-heart", daemon=True)
        self._heart.start()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request. A request of several items fails with the first one that is wrong."""
        try:
            return self._answers([_items(request, self._runner.stamp) for request in requests])
        except Exception as error:  # whatever it is: nobody must wait, and the launcher must know
            logging.exception("gapless: %s", self._name)
            self._failure = f"{type(error).__name__}: {error}"
            self._report()
            return [_refusal(self._failure, pb_utils.TritonError.INTERNAL) for _ in requests]

    def _answers(self, read: Sequence[list[object]]) -> list[Any]:
        try:
            results = iter(self._run([item for items in read for item in items]))
        except EngineError as error:
            if len(read) == 1:
                return [_refusal(str(error))]
            # One of them may be at fault, as by an index that a table does not have: each for itself.
            return [response for items in read for response in self._answers([items])]
        return [self._response([next(results) for _ in items]) for items in read]

    def _run(self, items: list[object]) -> list[Result]:
        """Items that could not even be read are passed by."""
        good = iter(self._runner.run([item for item in items if not isinstance(item, ItemError)]))
        return [item if isinstance(item, ItemError) else next(good) for item in items]

    def _response(self, results: Sequence[Result]) -> Any:
        rows = []
        for result in results:
            if isinstance(result, ItemError):
                return _refusal(str(result))
            rows.append(result)
        made = {t.name: np.concatenate([row[t.name] for row in rows]) for t in self._runner.stamp.outputs}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, _as_declared(array)) for name, array in made.items()])

    def is_ready(self) -> bool:
        """For Triton versions that ask."""
        return self._failure is None

    def close(self) -> None:
        self._stop.set()
        self._heart.join()
        self._report(leaving=True)
        if self._link is not None:
            self._link.close()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            self._report()

    def _report(self, leaving: bool = False) -> None:
        """Triton keeps the queue: there is nothing here to drain."""
        if self._link is not None:
            failure, drained, whole = self._failure, True, True
            self._link.send(Report(self._name, os.getpid(), 0, failure, drained, leaving, whole))


def _as_declared(array: NDArray[Any]) -> NDArray[Any]:
    """Triton knows no tensor without an axis beside the batch; see engines.tensors."""
    return array[:, None] if array.ndim == 1 else array


def _items(request: Any, stamp: Stamp) -> list[Any]:
    """The items of a request, one for each row, or one ItemError."""
    arrays: dict[str, Any] = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    if stamp.feed.kind == "arrays":
        for tensor in stamp.inputs:
            if len(tensor.shape) == 1:  # see _as_declared
                arrays[tensor.name] = arrays[tensor.name].reshape(-1)
        count = len(next(iter(arrays.values())))
        return [{name: array[row, ...] for name, array in arrays.items()} for row in range(count)]
    if len(arrays) != 1:
        given = f"{' and '.join(sorted(arrays))} are given together" if arrays else "no input is given"
        return [ItemError(f"{given}; allowed: one of {tensors.IMAGE} and {tensors.PIXELS}")]
    (rows,) = arrays.values()
    return list(rows.reshape(-1)) if rows.dtype == np.object_ else list(rows)


def _refusal(why: str, code: Any = None) -> Any:
    code = pb_utils.TritonError.INVALID_ARG if code is None else code
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(why, code))
