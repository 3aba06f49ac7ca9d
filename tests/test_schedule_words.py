"""The same load with other words: what a prefix cache kept of an earlier run is of no use to the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from config_gen.sla.spec import load
from loadtest.prompts import by_words
from loadtest.schedule import Part, schedule

ROOT = Path(__file__).resolve().parent.parent
MODEL = load(ROOT / "sla" / "rounds.yaml").models["chat"]


def test_other_words_are_the_same_load_of_other_texts() -> None:
    part = Part("chat", MODEL, by_words())
    one, same, other = (schedule([replace(part, words=words)], 10 * 10**9, 1.0, 3) for words in ("a/", "a/", "b/"))
    assert one == same
    bare = [[replace(request, text="", system="") for request in run] for run in (one, other)]
    assert bare[0] == bare[1] and len(one) > 20
    for mine, theirs in zip(one, other, strict=True):
        assert mine.text != theirs.text and (mine.system != theirs.system or not mine.system)
        assert len(mine.text.split()) == len(theirs.text.split())  # by words a token is three quarters of one
    assert any(mine.system for mine in one)
