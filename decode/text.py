"""Between text and tokens: the tokenizer of a built model, for prompts in and for text out.

Needs `tokenizers` and Jinja only; must not know Triton, tensors or scheduling. Shared by all requests and threads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import tokenizers

from decode.chat_template import ChatTemplate
from decode.detokenizer import Decoding, Piece
from decode.executors.model_config import ModelError
from decode.types import InvalidRequest

PROBE = 16  # characters a token that a text may have before its beginning is looked at


def too_long(count: int | str, most: int) -> InvalidRequest:
    """The refusal of a prompt with so many tokens where `most` are allowed."""
    return InvalidRequest(f"the prompt has {count} tokens; at most max_model_len - 1 = {most} are allowed")


class Tokenizer:
    """The tokenizer of a built model and its chat template."""

    def __init__(self, backend: tokenizers.Tokenizer, decoding: Decoding, template: ChatTemplate | None) -> None:
        backend.no_truncation()  # limits that were saved with the tokenizer are not the server's
        backend.no_padding()
        self.decoding = decoding
        self._backend = backend
        self._template = template
        self._special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self._pieces: dict[int, Piece] = {}

    @classmethod
    def load(cls, directory: Path | str) -> Tokenizer:
        """Read tokenizer.json, config.json and chat_template.jinja. Raises ModelError naming the file at fault."""
        home = Path(directory)
        path = home / "tokenizer.json"
        text = _read(path)
        try:
            backend = tokenizers.Tokenizer.from_str(text)
            decoding = Decoding.of(json.loads(text).get("decoder"))
        except Exception as error:  # the library has no narrower class
            raise ModelError(f"{path}: {error}") from None
        path = home / "chat_template.jinja"
        try:
            special = json.loads(_read(home / "config.json")).get("special_tokens") or {}
            template = ChatTemplate(_read(path), special) if path.exists() else None
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"{path}: line {error.lineno}: {error.message}") from None
        return cls(backend, decoding, template)

    def encode(self, text: str, most: int | None = None) -> tuple[int, ...]:
        """Token ids of plain text, begun as the model was trained (BOS or not). Special tokens in it are parsed.

        Raises InvalidRequest when the text is not valid Unicode or, early, when it clearly has over `most` tokens.
        """
        return self._encode("text_input", text, most, add_special_tokens=True)

    def encode_chat(self, messages: list[Any], most: int | None = None) -> tuple[int, ...]:
        """Token ids of a conversation up to where the assistant speaks; the template alone decides about BOS.

        Raises InvalidRequest naming the message at fault, or as `encode` does.
        """
        if self._template is None:
            raise InvalidRequest("messages: this model has no chat template; send text_input instead")
        return self._encode("messages", self._template.render(messages), most, add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        return self._backend.decode(list(tokens), skip_special_tokens=True)

    def piece(self, token: int) -> Piece:
        """What a token adds to a text; nothing for a special or unknown one."""
        piece = self._pieces.get(token)
        if piece is None:
            text = None if token in self._special else self._backend.id_to_token(token)
            piece = self._pieces[token] = self.decoding.piece(text or "")
        return piece

    def _clearly_over(self, text: str, most: int) -> bool:
        """Whether its beginning alone has over `most` tokens: all of a megabyte would take seconds.

        Where a text is cut its tokens may differ by a few.
        """
        return len(text) > PROBE * most and len(self._backend.encode_batch([text[: PROBE * most]])[0].ids) > most + 16

    def _encode(self, field: str, text: str, most: int | None, *, add_special_tokens: bool) -> tuple[int, ...]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{field}: holds half of a surrogate pair; valid Unicode text") from None
        if most is not None and self._clearly_over(text, most):
            raise too_long(f"more than {most}", most)
        # A batch of one: unlike a single text it is worked on without holding up Python's other threads.
        return tuple(self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; run `gapless build` first") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
