"""Prompts to ids, ids to text that never changes again, chat templates, stop strings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from decode.chat_template import ChatTemplate
from decode.detokenizer import Decoding, Detokenizer
from decode.executors.model_config import ModelError
from decode.stop_strings import StopStrings
from decode.text import Tokenizer
from decode.types import InvalidRequest

EMOJI = ["👨‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🧑🏿‍🚀", "⌚", "©️"]
WORDS = [
    "Hello",
    " world",
    "naïve",
    "日本語",
    "नमस्ते",
    "שלום",
    "\u200f",
    "e\u0301",
    "\n\n",
    "  ",
    "\t",
    "<|im_end|>",
    "1234",
    "𝔘",
]
# SmolLM2 has no token for some control characters and drops them, so they are not drawn here.
ANY_TEXT = st.text(st.characters(exclude_categories=["C"]), max_size=4)
REAL_TEXT = st.lists(st.sampled_from(EMOJI + WORDS) | ANY_TEXT, max_size=12).map("".join)


@pytest.fixture(scope="module")
def byte_level(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_dir)


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    """A tokenizer of Llama 2's kind: characters, byte tokens for the rest, blanks as ▁, special and added tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *"▁abcdehlorw日é", "▁w", "▁▁", "lo"]
    merges = [("▁", "w"), ("▁", "▁"), ("l", "o")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_tokens(["<tool>", " "])
    return Tokenizer(backend, Decoding.of(json.loads(backend.to_str())["decoder"]), None)


def streamed(tokenizer: Tokenizer, ids: list[int] | tuple[int, ...]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*(stream.push(token) for token in ids), stream.flush()]


# Low ids are special tokens, single bytes and short pieces: runs of them are mostly broken characters.
@settings(max_examples=400, deadline=None)
@given(ids=st.lists(st.integers(0, 49151) | st.integers(0, 300), max_size=30))
def test_random_bytelevel_ids_stream_to_what_decode_gives(byte_level: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(byte_level, ids)) == byte_level.decode(ids)


@settings(max_examples=400, deadline=None)
@given(ids=st.lists(st.integers(0, 290) | st.integers(0, 3) | st.integers(255, 290), max_size=30))
def test_random_sentencepiece_ids_stream_to_what_decode_gives(sentencepiece: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(sentencepiece, ids)) == sentencepiece.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=REAL_TEXT)
def test_real_text_streams_whole(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (byte_level, sentencepiece):
        ids = tokenizer.encode(text)
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
    plain = text.replace("<|im_end|>", "")
    assert "".join(streamed(byte_level, byte_level.encode(plain))) == plain


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from(EMOJI + WORDS), max_size=10))
def test_no_emoji_is_given_out_in_parts(byte_level: Tokenizer, sentencepiece: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts).replace("<|im_end|>", "")
    inside, at = set(), 0
    for part in parts:
        if part in EMOJI:
            inside |= set(range(at + 1, at + len(part)))
        at += len(part.replace("<|im_end|>", ""))
    for tokenizer in (byte_level, sentencepiece):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        cut = 0
        for piece in streamed(tokenizer, ids):
            cut += len(piece)
            assert cut not in inside


def test_text_comes_as_soon_as_it_is_final(byte_level: Tokenizer) -> None:
    assert streamed(byte_level, byte_level.encode("Hello world, 日"))[:3] == ["Hello", " world", ","]
    assert streamed(byte_level, byte_level.encode("日"))[-1] == ""


def test_an_incomplete_character_ends_as_a_replacement(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    first_byte = byte_level.encode("日")[:1]
    assert streamed(byte_level, first_byte) == ["", "\ufffd"]
    run = [3 + 0xE6, 3 + 0x97]
    assert streamed(sentencepiece, run) == ["", "", "\ufffd\ufffd"]


def test_a_run_of_modifiers_does_not_hold_text_for_ever(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("👍" + "\ufe0f" * 500)
    stream = Detokenizer(byte_level)
    assert len("".join(map(stream.push, ids))) > 400


def test_prompts_encode_as_the_reference_did(byte_level: Tokenizer) -> None:
    """Ids of the original tokenizer for text with digits, blanks, accents, code and special tokens."""
    cases = json.loads((Path(__file__).parent / "data" / "smollm2_ids.json").read_text())
    assert len(cases) >= 8
    for case in cases:
        assert list(byte_level.encode(case["text"])) == case["ids"]


def test_a_conversation_becomes_the_models_own_prompt(byte_level: Tokenizer) -> None:
    ids = byte_level.encode_chat([{"role": "user", "content": "Hi"}])
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids == byte_level.encode(expected)
    assert ids[0] == 1 and ids.count(2) == 2
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]
    whole = byte_level.encode_chat([{"role": "user", "content": "Hi\nthere"}])
    assert byte_level.encode_chat([{"role": "user", "content": parts}]) == whole


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: must be a list of at least one message"),
        ({"role": "user"}, "messages: must be a list"),
        (["Hi"], "messages[0]: 'Hi' is not allowed"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "messages[1].role: None"),
        ([{"role": 3, "content": "a"}], "messages[0].role: 3"),
        ([{"role": "user"}], "messages[0].content: None"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0].content: "),
        ([{"role": "user", "content": "\ud800"}], "messages: holds half of a surrogate pair"),
    ],
)
def test_messages_of_a_wrong_shape_are_refused(byte_level: Tokenizer, messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        byte_level.encode_chat(messages)
    assert message in str(refused.value)


def test_invalid_unicode_and_a_missing_template_are_refused(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="text_input"):
        byte_level.encode("a\udfffb")
    with pytest.raises(InvalidRequest, match="no chat template"):
        sentencepiece.encode_chat([{"role": "user", "content": "Hi"}])


ALTERNATING = """
{%- for m in messages %}
  {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
  {%- if loop.index0 > 3 %}{% break %}{% endif %}
  {%- generation %}[{{ m['role'] }}] {{ m | tojson }}{% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}{{ bos_token }}>{{ strftime_now('%%') }}{% endif %}"""


def test_templates_mean_what_transformers_makes_of_them() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = ChatTemplate(ALTERNATING, {"bos_token": "<s>"})
    messages = [{"role": role, "content": "<é\n>"} for role in ("user", "assistant", "user")]
    expected, _ = render_jinja_template(
        [messages], chat_template=ALTERNATING, add_generation_prompt=True, bos_token="<s>"
    )
    assert template.render(messages) == expected[0]
    with pytest.raises(InvalidRequest, match=r"messages\[3\]: the chat template refuses it: roles must alternate"):
        template.render([*messages, {"role": "user", "content": "again"}])


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}", "{{ messages[0].content + 1 }}"],
)
def test_a_template_that_misbehaves_refuses_the_message(template: str) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\]: the chat template refuses it"):
        ChatTemplate(template, {}).render([{"role": "user", "content": "Hi"}])


def test_a_decoder_that_cannot_be_followed_is_refused(byte_level: Tokenizer, tmp_path: Path, smollm2_dir: Path) -> None:
    raw = json.loads((smollm2_dir / "tokenizer.json").read_text()) | {"decoder": {"type": "CTC", "pad_token": "",
        "word_delimiter_token": "|", "cleanup": True}}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: decoder \['CTC'\] is not supported"):
        Tokenizer.load(tmp_path)


def first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """Brute force: of all matches the one that ends first, and of those the longest."""
    matches = [
        (i + len(s), -len(s)) for s in stops for i in range(len(text)) if text.startswith(s, i)
    ]  # fmt: skip
    if not matches:
        return text, False
    end, length = min(matches)
    return text[: end + length], True


STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


@settings(max_examples=600, deadline=None)
@given(stops=STOPS, pieces=st.lists(st.text("abc\n", max_size=4), max_size=12))
def test_stop_strings_are_found_like_brute_force_finds_them(stops: list[str], pieces: list[str]) -> None:
    matcher = StopStrings(tuple(stops))
    emitted, seen, stopped = "", "", False
    for piece in pieces:
        text, stopped = matcher.push(piece)
        emitted, seen = emitted + text, seen + piece
        assert (emitted, stopped) == first_stop(seen, stops) or not stopped
        if stopped:
            break
        held = seen.removeprefix(emitted)  # no more is held back than could begin a stop string
        assert seen == emitted + held and (held == "" or any(s.startswith(held) and s != held for s in stops))
    if not stopped:
        emitted += matcher.flush()
    assert (emitted, stopped) == first_stop("".join(pieces), stops)


def test_a_stop_string_over_many_tokens_is_never_shown() -> None:
    matcher = StopStrings(("\nUser:", "###"))
    assert matcher.push("Fine.\nUs") == ("Fine.", False)
    assert matcher.push("ually #") == ("\nUsually ", False)
    assert matcher.push("# and ##") == ("## and ", False)
    assert matcher.push("# more") == ("", True)
    assert matcher.flush() == ""


def test_a_text_of_far_too_many_tokens_is_refused_by_its_beginning(byte_level: Tokenizer) -> None:
    """Exactly the limit is taken, whatever its length in characters; a megabyte is not read to its end."""
    ids = byte_level.encode("fox " * 2000)
    assert byte_level.encode("fox " * 2000, most=len(ids)) == ids
    with pytest.raises(InvalidRequest, match=r"^the prompt has more than 50 tokens; at most max_model_len - 1 = 50"):
        byte_level.encode("fox " * 250_000, most=50)
