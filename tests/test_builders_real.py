"""Two real models at every precision against FP32, on data that nothing was fitted to, with scores computed anew here.

What is declared in sla/demo.yaml is built. The plans for TensorRT-RTX are real, made without a GPU; deserializing one
needs CUDA's driver, so that where there is none only what the plan's own text says of its tensors is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorrt_rtx
import torch
import transformers
from onnx import numpy_helper

from builders.compile import Options, compile_plan
from builders.data import digest_of
from builders.engine import _Build
from builders.networks import open_network
from builders.precisions import Candidate
from builders.progress import quiet
from builders.runtimes import optimization_profiles
from builders.source import resolve
from config_gen.sla.spec import OnnxModel, load

SPEC = load(Path(__file__).resolve().parent.parent / "sla" / "demo.yaml")
NAMES, PRECISIONS = ("embed", "classify"), ("int8", "fp16")
HEAVY = ("MatMul", "Gemm", "Conv")


class Real:
    """One model and what was built of it."""

    def __init__(self, name: str, out: Path) -> None:
        declared = SPEC.models[name]
        assert isinstance(declared, OnnxModel)
        self.model = declared
        self.build = _Build(name, declared, out, "", "", False, quiet, False)
        self.exported = self.build._exported
        self.calibration, self.evaluation = self.build._precisions._items
        self.candidates = {name: self.build._precisions.candidate(name) for name in (*PRECISIONS, "fp32")}
        self.feeds = self.build._precisions._data()[1][0]

    def outputs(self, path: Path) -> Any:
        """Of the evaluation data, by onnxruntime and nothing of ours."""
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return np.concatenate([session.run(None, dict(feed))[0] for feed in self.feeds])


@pytest.fixture(scope="module")
def real(build_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Real]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(build_cache))
        yield {name: Real(name, tmp_path_factory.mktemp(name)) for name in NAMES}


def constants(path: Path) -> dict[str, Any]:
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("name", NAMES)
def test_the_gates_data_are_held_out(real: dict[str, Real], name: str) -> None:
    left, right = ({digest_of(item) for item in side} for side in (real[name].calibration, real[name].evaluation))
    assert len(left) >= 200 and len(right) >= 200 and not left & right
    assert sum(len(next(iter(feed.values()))) for feed in real[name].feeds) == len(real[name].evaluation)


@pytest.mark.parametrize("form", ["served", "typed"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_embeddings_keep_their_direction(real: dict[str, Real], precision: str, form: str) -> None:
    embed = real["embed"]
    candidate = embed.candidates[precision]
    wanted, got = embed.outputs(embed.exported.graph), embed.outputs(getattr(candidate, form))
    assert wanted.shape == got.shape == (len(embed.evaluation), 384)
    cosines = (wanted * got).sum(1) / np.linalg.norm(wanted, axis=1) / np.linalg.norm(got, axis=1)
    assert cosines.mean() >= 0.99 and cosines.min() >= 0.97
    assert np.abs(wanted - got).max() > 1e-6  # another precision, not the same graph again
    if form == "served" and precision == "int8":
        assert candidate.score.mean == pytest.approx(cosines.mean(), abs=1e-3)
        assert candidate.score.worst == pytest.approx(cosines.min(), abs=5e-3)


@pytest.mark.parametrize("form", ["served", "typed"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_pictures_keep_their_class(real: dict[str, Real], precision: str, form: str) -> None:
    classify = real["classify"]
    candidate = classify.candidates[precision]
    wanted, got = classify.outputs(classify.exported.graph), classify.outputs(getattr(candidate, form))
    assert len(wanted) == len(got) >= 200 and wanted.shape[1] == 1000
    assert len(set(wanted.argmax(1).tolist())) > 20  # crops of many kinds, not one class again and again
    assert (wanted.argmax(1) == got.argmax(1)).mean() >= 0.97
    assert np.abs(wanted - got).max() > 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_int8_graphs_hold_weights_of_int8_per_channel_and_round_only_before_products(
    real: dict[str, Real], name: str
) -> None:
    candidate = real[name].candidates["int8"]
    model, values = onnx.load(candidate.typed), constants(candidate.typed)
    onnx.checker.check_model(model)
    made_by = {output: node for node in model.graph.node for output in node.output}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for read in node.input:
            readers.setdefault(read, []).append(node)
    quantized = []
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert values[node.input[2]].dtype == np.int8 and not values[node.input[2]].any()
            wanted = HEAVY if node.op_type == "DequantizeLinear" else ("DequantizeLinear",)
            assert {reader.op_type for reader in readers[node.output[0]]} <= set(wanted), node.name
        elif node.op_type in HEAVY and made_by.get(node.input[1], node).op_type == "DequantizeLinear":
            back = made_by[node.input[1]]
            whole, scales = values[back.input[0]], values[back.input[1]]
            assert whole.dtype == np.int8 and scales.ndim == 1
            assert len(scales) in (whole.shape[0], whole.shape[-1]) and len(np.unique(scales)) > 1
            assert made_by[node.input[0]].op_type == "DequantizeLinear"
            quantized.append(node)
    products = [n for n in onnx.load(real[name].exported.graph).graph.node if n.op_type in HEAVY]
    kept = int(candidate.notes[0].split()[0])
    assert len(quantized) == kept and kept >= len([p for p in products if p.input[1] in values]) // 2
    assert candidate.typed.stat().st_size < 0.75 * real[name].exported.graph.stat().st_size


@pytest.mark.parametrize("name", NAMES)
def test_fp16_graphs_hold_weights_of_fp16(real: dict[str, Real], name: str) -> None:
    candidate = real[name].candidates["fp16"]
    before, after = constants(real[name].exported.graph), constants(candidate.typed)
    large = {key for key, array in before.items() if array.dtype == np.float32 and array.size > 1000}
    halves = {key.removesuffix("/half") for key, array in after.items() if array.dtype == np.float16}
    assert large <= halves
    assert candidate.typed.stat().st_size < 0.55 * real[name].exported.graph.stat().st_size
    model = onnx.load(candidate.typed)
    onnx.checker.check_model(model)
    exported = onnx.load(real[name].exported.graph)
    for ours, theirs in ((model.graph.input, exported.graph.input), (model.graph.output, exported.graph.output)):
        assert [(t.name, t.type.tensor_type.elem_type) for t in ours] == [
            (t.name, t.type.tensor_type.elem_type) for t in theirs
        ]


@pytest.mark.parametrize("name", NAMES)
def test_the_export_computes_what_torch_does(real: dict[str, Real], name: str) -> None:
    model = real[name].model
    network = open_network(model.source, model.max_length)
    session = onnxruntime.InferenceSession(str(real[name].exported.graph), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(3)
    for rows in (1, 3, model.max_batch_size):
        for length in (1, 7, model.max_length) if network.lengths else (0,):
            if network.lengths:
                mask = torch.ones(rows, length, dtype=torch.int64)
                mask[0, (length + 1) // 2 :] = 0
                ids = torch.randint(1000, 30000, (rows, length), generator=generator)
                inputs = {"input_ids": ids, "attention_mask": mask}
            else:
                inputs = {"image": torch.randn(rows, 3, network.feed.size, network.feed.size, generator=generator)}
            with torch.no_grad():
                wanted = network.module(*inputs.values()).numpy()
            got = session.run(None, {key: tensor.numpy() for key, tensor in inputs.items()})[0]
            assert np.abs(wanted - got).max() <= 1e-4 * np.abs(wanted).max(), (rows, length)


def test_embeddings_are_what_transformers_and_a_masked_mean_give(real: dict[str, Real]) -> None:
    encoder = transformers.AutoModel.from_pretrained(
        str(resolve(real["embed"].model.source)), dtype=torch.float32
    ).eval()
    session = onnxruntime.InferenceSession(str(real["embed"].exported.graph), providers=["CPUExecutionProvider"])
    for feed in real["embed"].feeds[::20]:
        ids, mask = torch.from_numpy(feed["input_ids"]), torch.from_numpy(feed["attention_mask"])
        with torch.no_grad():
            hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        wanted = torch.nn.functional.normalize(mean, dim=1).numpy()
        np.testing.assert_allclose(session.run(None, dict(feed))[0], wanted, atol=2e-5)


# Compiled ahead of time


TYPES = {"int64": b"int64", "float32": b"float"}


def plan_of(real: Real, candidate: Candidate, capabilities: tuple[str, ...]) -> Any:
    profiles = optimization_profiles(real.model.max_batch_size, real.exported.feed.max_length)
    options = Options(compute_capability=capabilities)
    return compile_plan("tensorrt_rtx", candidate.typed.read_bytes(), real.exported.inputs, profiles, options)


CASES = [
    ("embed", "fp16", ("8.0", "8.9")),
    ("embed", "int8", ("8.9",)),
    ("classify", "fp16", ("8.0",)),
    ("classify", "int8", ("8.0", "8.9")),
]


@pytest.mark.parametrize(("name", "precision", "capabilities"), CASES)
def test_tensorrt_compiles_it_for_gpus_that_are_not_here(
    real: dict[str, Real], name: str, precision: str, capabilities: tuple[str, ...]
) -> None:
    """The plan is real. It is deserialized where there is a CUDA driver; without one TensorRT refuses and says so."""
    candidate, exported = real[name].candidates[precision], real[name].exported
    made = plan_of(real[name], candidate, capabilities)
    assert made.plan[:4] == b"vtrt" and len(made.plan) > 1_000_000
    assert made.compute_capabilities == capabilities and made.version == tensorrt_rtx.__version__
    assert list(made.inputs) == [tensor.name for tensor in exported.inputs]
    assert list(made.outputs) == [tensor.name for tensor in exported.outputs]
    for tensor in (*exported.inputs, *exported.outputs):
        text = rb'name="%s\.\d+"[^}]*region="" [^\n]*type=(\w+) }' % tensor.name.encode()
        assert set(re.findall(text, made.plan)) == {TYPES[tensor.dtype]}, tensor.name
    log = _Log()
    engine = tensorrt_rtx.Runtime(log).deserialize_cuda_engine(made.plan)
    if engine is None:
        assert not torch.cuda.is_available() and any("CUDA" in line or "driver" in line for line in log.errors)
        return
    tensors = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    assert tensors == [tensor.name for tensor in (*exported.inputs, *exported.outputs)]


class _Log(tensorrt_rtx.ILogger):
    def __init__(self) -> None:
        tensorrt_rtx.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity <= tensorrt_rtx.ILogger.Severity.ERROR:
            self.errors.append(message)
