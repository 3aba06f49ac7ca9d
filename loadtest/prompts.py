"""Real English of a wanted length: sentences of Python's own documentation, which every Python carries.

Sentences are drawn one by one, so that two prompts share no more than a first sentence by chance, and a prefix cache
is hit only where a shared prefix is meant. Must not know tiers, rates or the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from random import Random

Spans = list[tuple[int, int]]  # half-open character ranges of tokens

WORDS_PER_TOKEN = 0.75  # of English, for want of the model's tokenizer


class PromptError(ValueError):
    """Prompts cannot be measured as asked; one line."""

    exit_status = 2


class Prompts:
    """Draws texts of a given number of tokens."""

    def __init__(self, spans: Callable[[str], Spans], per_token: float, measure: str) -> None:
        """`spans` splits a text into units, of which `per_token` make a token; `measure` says so to people."""
        joined = [f" {sentence}" for sentence in sentences()]
        self._sentences = [(text, [end for _, end in spans(text)]) for text in joined]
        self._per_token = per_token
        self.measure = measure

    def draw(self, random: Random, tokens: int) -> str:
        """Sentences of `tokens` tokens in all, the last one cut to fit."""
        wanted = max(1, round(tokens * self._per_token))
        parts: list[str] = []
        while wanted > 0:
            text, ends = random.choice(self._sentences)
            parts.append(text if len(ends) <= wanted else text[: ends[wanted - 1]])
            wanted -= len(ends)
        return "".join(parts).strip()


def by_words() -> Prompts:
    """Lengths approximated by words."""
    measure = f"lengths approximated by words ({WORDS_PER_TOKEN} a token): no tokenizer.json at hand"
    return Prompts(lambda text: [m.span() for m in re.finditer(r"\S+", text)], WORDS_PER_TOKEN, measure)


def by_tokenizer(path: Path) -> Prompts:
    """Lengths counted by the model's own `tokenizer.json`."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise PromptError(f"--tokenizer: {path}: {error}; give the model's tokenizer.json") from None
    # Encoders bring a length to cut to and to fill up to: neither is in a text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Prompts(
        lambda text: list(tokenizer.encode(text, add_special_tokens=False).offsets), 1.0, f"tokens of {path}"
    )


def sentences() -> list[str]:
    """Each distinct sentence of the prose paragraphs; about a thousand."""
    found: dict[str, None] = {}
    for topic in topics.values():
        for paragraph in topic.split("\n\n"):
            prose = paragraph[:1].isupper() and paragraph.rstrip().endswith(".") and "\n  " not in paragraph
            if prose and len(paragraph) > 80:
                for sentence in re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(paragraph.split())):
                    found[sentence] = None
    return list(found)
