"""Small batchable models and data for the tests of builders: torch factories, ONNX files written out, metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from builders.engine import build_engine
from builders.gate import outputs_of
from builders.int8 import Prepared, calibrate
from builders.report import Built
from builders.search import Found, Search
from config_gen.sla.spec import Accuracy, OnnxModel
from engines.session import OnnxSession
from engines.stamp import FILE, Stamp

FLOAT = TensorProto.FLOAT


def onnx_model(**fields: Any) -> OnnxModel:
    """A model as an SLA file declares it."""
    return OnnxModel.model_validate({"kind": "onnx", **fields})


def graph(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Any],
    *,
    inputs: Sequence[tuple[str, int, Sequence[Any]]] = (("x", FLOAT, ["n", 4]),),
    outputs: Sequence[tuple[str, int, Sequence[Any]]] = (("y", FLOAT, ["n", None]),),
    opset: int = 20,
) -> onnx.ModelProto:
    """A checked ONNX model."""
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*parts) for parts in inputs],
        [helper.make_tensor_value_info(*parts) for parts in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def weights(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def linear(name: str = "x", width: int = 4, wide: int = 3) -> onnx.ModelProto:
    """y = x @ w + b."""
    nodes = [helper.make_node("MatMul", [name, "w"], ["h"], "mm"), helper.make_node("Add", ["h", "b"], ["y"], "add")]
    constants = {"w": weights(width, wide), "b": weights(wide, seed=1)}
    return graph(nodes, constants, inputs=[(name, FLOAT, ["n", width])])


def chain(*layers: Any, biases: Sequence[Any] = ()) -> onnx.ModelProto:
    """x through products `layer0`, `layer1`, … with Tanh between them; a bias behind each where there are any."""
    nodes, constants, at = [], {}, "x"
    for number, layer in enumerate(layers):
        last = number == len(layers) - 1
        constants[f"w{number}"] = layer
        nodes.append(helper.make_node("MatMul", [at, f"w{number}"], [f"h{number}"], f"layer{number}"))
        at = f"h{number}"
        if biases:
            constants[f"b{number}"] = biases[number]
            nodes.append(helper.make_node("Add", [at, f"b{number}"], [f"s{number}"], f"bias{number}"))
            at = f"s{number}"
        if not last:
            nodes.append(helper.make_node("Tanh", [at], [f"a{number}"], f"tanh{number}"))
            at = f"a{number}"
    nodes[-1].output[0] = "y"
    return graph(nodes, constants, inputs=[("x", FLOAT, ["n", layers[0].shape[0]])])


def write_npz(path: Path, count: int = 64, width: int = 4, seed: int = 0, dtype: Any = np.float32) -> Path:
    """`count` items of one input x."""
    np.savez(path, x=np.random.default_rng(seed).standard_normal((count, width)).astype(dtype))
    return path


class Mlp(torch.nn.Module):
    def __init__(self, width: int = 4, hidden: int = 16, out: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    """A factory, as `torch:builder_models:mlp` names it."""
    return Mlp(), torch.zeros(2, 4)


class TwoInTwoOut(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right = torch.nn.Linear(3, 5), torch.nn.Embedding(11, 5)

    def forward(self, values: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        both = self.left(values) + self.right(ids).sum(1)
        return {"sum": both, "best": both.argmax(1)}


def two() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    return TwoInTwoOut(), {"ids": torch.tensor([[1, 2], [3, 10]]), "values": torch.randn(2, 3)}


class Centred(torch.nn.Module):
    """Subtracts the mean over the batch, as a forgotten BatchNorm in training mode does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


def centred() -> Any:
    return Centred(), torch.randn(2, 4)


class Raising(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no forward\ntoday")


def raising_forward() -> Any:
    return Raising(), torch.zeros(2, 4)


def raising_factory() -> Any:
    raise KeyError("weights")


def no_module() -> Any:
    return "module", torch.zeros(2, 4)


def no_pair() -> Any:
    return Mlp()


def number_for_example() -> Any:
    return Mlp(), 3


def wrong_name() -> Any:
    return Mlp(), {"nobody": torch.zeros(2, 4)}


def untraceable() -> Any:
    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 0 else -x

    return Branching(), torch.ones(2, 4)


def texts() -> list[str]:
    return [f"text number {at}" for at in range(40)]


def rows() -> dict[str, Any]:
    return {"x": weights(40, 4, seed=5)}


def raising_data() -> Any:
    raise RuntimeError("no data today")


def nothing() -> None:
    return None


def one_string() -> str:
    return "a text that is not a list"


def wheels_shared(home: Path) -> Path:
    """A cache directory of its own that shares the wheels which the user's cache holds; for $XDG_CACHE_HOME."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gapless" / "wheels"
    users.mkdir(parents=True, exist_ok=True)
    (home / "gapless").mkdir(parents=True)
    (home / "gapless" / "wheels").symlink_to(users)
    return home


def small_int8(folder: Path, name: str = "m", seed: int = 0) -> dict[str, Any]:
    """Fields of a small model in INT8 that passes its gate; its file and its data are written to `folder`."""
    layers = [weights(16, 32, seed=seed) / 4, weights(32, 8, seed=seed + 1) / 6]
    saved(chain(*layers, biases=(weights(32), weights(8))), folder / f"{name}.onnx")
    write_npz(folder / "data.npz", width=16)
    return {
        "source": f"onnx:{folder / name}.onnx",
        "precision": "int8",
        "accuracy": {"metric": "cosine", "min": 0.99},
        "calibration": str(folder / "data.npz"),
        "max_batch_size": 4,
    }


def build(fields: dict[str, Any], out: Path, **more: Any) -> Built:
    return build_engine("m", onnx_model(**fields), out, rebuild="gapless build m", machine="two cores", **more)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Files of a folder with the time they were written at."""
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir() if not p.name.startswith(".")}


def whole(out: Path) -> Stamp:
    """The stamp of an engine that fits its files, and beside which nothing else lies."""
    stamp = Stamp.read(out)
    stamp.check(out)
    assert set(snapshot(out)) == {FILE, *stamp.files}
    return stamp


def feeds_of(width: int, count: int = 6, seed: int = 0, scale: Any = 1.0) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [{"x": (random.standard_normal((16, width)) * scale).astype(np.float32)} for _ in range(count)]


def run_plainly(model: onnx.ModelProto, data: Sequence[Any]) -> list[dict[str, Any]]:
    return outputs_of(OnnxSession(model.SerializeToString(), optimize=False), data)


def search(model: onnx.ModelProto, accuracy: Accuracy, calibration: Any, evaluation: Any) -> tuple[Found, Prepared]:
    prepared = calibrate(model, calibration)
    sides = [(side, run_plainly(model, side)) for side in (calibration, evaluation)]
    return Search(prepared, accuracy, sides[0], sides[1], lambda what, done, total: None).run(), prepared


def initializers(model: onnx.ModelProto) -> dict[str, Any]:
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
