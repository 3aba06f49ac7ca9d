"""Text that grows token by token and never takes back what it gave out.

Knows how the decoders of `tokenizers` turn token strings into text; must not know requests, Jinja or that library.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Any, Protocol

# GPT-2's map from bytes to printable characters (`bytes_to_unicode`, openai/gpt-2 encoder.py), inverted.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_REST = [b for b in range(0x100) if b not in _PRINTABLE]
BYTE_OF = {chr(b): b for b in _PRINTABLE} | {chr(0x100 + i): b for i, b in enumerate(_REST)}
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# Emoji are written with several characters: flags in pairs, families joined by U+200D, skin tones and variants after.
# The end of a text that a next character could still extend is held back. Ranges cover Extended_Pictographic (UTS 51).
_PICTURE = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u2460-\u27bf\u2900-\u2bff\u3030-\u303d\u3297\u3299"
    "\U0001f000-\U0001f1e5\U0001f200-\U0001faff]"
)
_EMOJI = _PICTURE + "[\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
_OPEN_EMOJI = re.compile(f"{_EMOJI}(?:\u200d{_EMOJI})*\u200d?\\Z")
_FLAG_LETTERS = re.compile("[\U0001f1e6-\U0001f1ff]+\\Z")
MAX_HELD = 64  # characters; no emoji is longer

Piece = bytes | str | int  # what one token adds: bytes (byte-level), characters, or one byte of a character


@dataclass(frozen=True, slots=True)
class Decoding:
    """How token strings become text: byte-level, or SentencePiece's replacements, byte tokens and leading blank."""

    byte_level: bool
    replaced: tuple[tuple[str, str], ...] = ()
    lead: str = ""  # character dropped from the start of a text …
    lead_count: int = 0  # … at most so often

    @classmethod
    def of(cls, decoder: dict[str, Any] | None) -> Decoding:
        """Read the `decoder` of a tokenizer.json. Raises ValueError when it cannot be followed token by token."""
        steps: list[dict[str, Any]] = (decoder or {}).get("decoders", [decoder or {}])
        kinds = [step.get("type") for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(True)
        replaced = [step for step in steps if step.get("type") == "Replace" and "String" in step["pattern"]]
        strip: dict[str, Any] = steps[-1] if kinds[-1:] == ["Strip"] else {"content": "", "start": 0, "stop": 0}
        if kinds[len(replaced) :] not in (["ByteFallback", "Fuse"], ["ByteFallback", "Fuse", "Strip"]) or strip["stop"]:
            raise ValueError(f"decoder {kinds} is not supported; ByteLevel, or Replace, ByteFallback, Fuse, Strip")
        pairs = tuple((step["pattern"]["String"], step["content"]) for step in replaced)
        return cls(False, pairs, strip["content"], strip["start"])

    def piece(self, token: str) -> Piece:
        """What a token string adds to a text."""
        if self.byte_level:
            # A token added later need not be in the byte alphabet; then it stands for itself.
            return bytes(BYTE_OF[c] for c in token) if all(c in BYTE_OF for c in token) else token.encode()
        for old, new in self.replaced:
            token = token.replace(old, new)
        match = BYTE_TOKEN.fullmatch(token)
        return int(match[1], 16) if match else token


class Pieces(Protocol):
    """What a Detokenizer asks of a tokenizer."""

    decoding: Decoding

    def piece(self, token: int) -> Piece:
        """What the token adds to a text; nothing for a special token."""
        ...


class Detokenizer:
    """Text of one request's output, token by token; all pushes and the flush together equal `Tokenizer.decode`.

    Nothing is given out that a later token could still change: an incomplete UTF-8 character, a run of byte tokens
    (SentencePiece reads a run as a whole), an emoji that may go on. Each push costs the same however long the text.
    `continues`: the text follows other text, so the blank that SentencePiece drops at a start is kept.
    For one thread at a time.
    """

    def __init__(self, tokenizer: Pieces, *, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._run = bytearray()
        self._lead_left = 0 if continues else tokenizer.decoding.lead_count
        self._held = ""

    def push(self, token: int) -> str:
        """The text that became final with this token; often empty."""
        piece = self._tokenizer.piece(token)
        if isinstance(piece, int):
            self._run.append(piece)
            return ""
        if not piece:
            return ""
        text = self._utf8.decode(piece) if isinstance(piece, bytes) else self._without_lead(self._end_run() + piece)
        return self._final(text) if text else ""

    def flush(self) -> str:
        """What is left at the end; incomplete characters as U+FFFD."""
        text = self._held + self._without_lead(self._end_run()) + self._utf8.decode(b"", final=True)
        self._held = ""
        return text

    def _end_run(self) -> str:
        """Text of a run of byte tokens; one U+FFFD per byte when they are not UTF-8, as `tokenizers` has it."""
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _without_lead(self, text: str) -> str:
        while self._lead_left and text:
            if not text.startswith(self._tokenizer.decoding.lead):
                self._lead_left = 0
                break
            text = text[1:]
            self._lead_left -= 1
        return text

    def _final(self, text: str) -> str:
        """Add to what is held and give out all but an end that may go on."""
        text = self._held + text
        cut = len(text)
        if flags := _FLAG_LETTERS.search(text):
            cut -= len(flags[0]) % 2
        elif emoji := _OPEN_EMOJI.search(text):
            cut = emoji.start()
        if len(text) - cut > MAX_HELD:
            cut = len(text)
        self._held = text[cut:]
        return text[:cut]
