"""A Hugging Face directory as a model: config, weights (one file or shards), tokenizer, chat template.

Reads what `save_pretrained` writes and what model hubs hold. Must not know GGUF or where files go.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders.errors import BuildError
from builders.family import normalize
from builders.safetensors_file import Tensor, open_tensors

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; an empty one when the file is optional and absent. Raises BuildError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if optional:
            return {}
        raise BuildError(f"{path}: no such file") from None
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise BuildError(f"{path}: not JSON: {error}") from None
    except RecursionError:
        raise BuildError(f"{path}: nested too deeply") from None
    if not isinstance(value, dict):
        raise BuildError(f"{path}: must hold a JSON object")
    return value


class HfDirectory:
    """A directory with config.json, *.safetensors and tokenizer.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = read_json(path / "config.json")
        self._tokenizer_config = read_json(path / "tokenizer_config.json", optional=True)
        self._generation = read_json(path / "generation_config.json", optional=True)

    def config(self) -> dict[str, Any]:
        """The normal config of this model, without token ids."""
        return normalize(self.raw, str(self.path / "config.json"))

    def weight_files(self) -> list[Path]:
        """The files that hold tensors: one, or the shards that an index names."""
        if (self.path / INDEX).exists():
            shards = read_json(self.path / INDEX).get("weight_map")
            if not isinstance(shards, dict) or not all(
                isinstance(s, str) and s == Path(s).name for s in shards.values()
            ):
                raise BuildError(f"{self.path / INDEX}: weight_map: must map tensors to files beside it")
            return [self.path / name for name in sorted(set(shards.values()))]
        if not (self.path / SINGLE).exists():
            raise BuildError(f"{self.path}: holds neither {SINGLE} nor {INDEX}; only safetensors weights are supported")
        return [self.path / SINGLE]

    def open_tensors(self, config: dict[str, Any]) -> dict[str, Tensor]:
        """The model's tensors by name, as stored; those that carry nothing (rotary tables, a tied head) left out."""
        tensors = {name: tensor for file in self.weight_files() for name, tensor in open_tensors(file).items()}
        tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
        return {n: t for n, t in tensors.items() if n not in tied and not n.endswith("rotary_emb.inv_freq")}

    def tokenizer_json(self) -> str:
        """Text of tokenizer.json."""
        path = self.path / "tokenizer.json"
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise BuildError(f"{path}: no such file; save the tokenizer in its fast form") from None
        except (OSError, ValueError) as error:
            raise BuildError(f"{path}: cannot be read: {error}") from None

    def special_tokens(self) -> dict[str, str]:
        """Strings of the special tokens a chat template may use."""
        found = {name: self._tokenizer_config.get(name) for name in SPECIAL_TOKENS}
        texts = {name: t.get("content") if isinstance(t, dict) else t for name, t in found.items()}
        return {name: self._sound(name, text) for name, text in texts.items() if isinstance(text, str)}

    def eos_token_ids(self) -> list[int]:
        """Every token that ends an answer, by config.json and generation_config.json together."""
        values = [source.get("eos_token_id") for source in (self.raw, self._generation)]
        ids = [i for value in values for i in (value if isinstance(value, list) else [value])]
        if not all(i is None or isinstance(i, int) for i in ids):
            raise BuildError(f"{self.path / 'config.json'}: eos_token_id: {ids!r}; token ids are needed")
        return [i for i in dict.fromkeys(ids) if i is not None]

    def chat_template(self) -> str | None:
        """The template that turns messages into a prompt, where the model has one."""
        path = self.path / "chat_template.jinja"
        if path.exists():
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise BuildError(f"{path}: cannot be read: {error}") from None
        template = self._tokenizer_config.get("chat_template")
        template = template or read_json(self.path / "chat_template.json", optional=True).get("chat_template")
        if isinstance(template, list):  # several by name
            named = [t.get("template") for t in template if isinstance(t, dict) and t.get("name") == "default"]
            template = named[0] if named else None
        return self._sound("chat_template", template) if isinstance(template, str) else None

    def _sound(self, field: str, text: str) -> str:
        """JSON may hold halves of characters, which no file and no prompt can."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            path = self.path / "tokenizer_config.json"
            raise BuildError(f"{path}: {field}: is not text: half a character at {error.start}") from None
        return text
