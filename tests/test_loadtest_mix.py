"""Models of both kinds in one file, without a server: what is sent to each, and when."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, median, pstdev
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sla_files import CHAT, CLASSIFY, EMBED, spec, text
from tokenizers import Tokenizer, models, pre_tokenizers

from config_gen.sla.arrivals import lognormal
from config_gen.sla.spec import parse
from gapless.parts import pick_parts
from loadtest import unary
from loadtest.pictures import picture
from loadtest.prompts import by_tokenizer
from loadtest.run import Client
from loadtest.samples import POOL, Planned
from loadtest.schedule import schedule

SECOND, MS = 10**9, 10**6
CLIENT = Client(send_lag=1 * MS, loop_lag=2 * MS, cpu=0.1)


def planned(*models: str, seconds: int = 60) -> list[Planned]:
    return schedule(pick_parts(spec(*models), None), seconds * SECOND, 1, 7)


def of(model: str, requests: list[Planned], tier: str = "") -> list[Planned]:
    return [request for request in requests if request.model == model and tier in ("", request.tier)]


def test_adding_a_model_or_a_tier_moves_no_other_request() -> None:
    everything = planned(CHAT, EMBED, CLASSIFY)
    assert [request.at for request in everything] == sorted(request.at for request in everything)
    assert len({request.id for request in everything}) == len(everything)
    for name, alone in (("chat", CHAT), ("embed", EMBED), ("classify", CLASSIFY)):
        assert of(name, everything) == planned(alone)
    without = EMBED.replace(", b: {rate: 10/s, length: {median: 8, p95: 8}}", "")
    assert of("embed", planned(without)) == of("embed", everything, "a")


def test_requests_carry_the_place_of_their_tier_in_the_file_and_an_llm_goes_by_the_tier_itself() -> None:
    requests = planned(CHAT, EMBED, CLASSIFY)
    assert {(r.tier, r.priority) for r in of("embed", requests)} == {("a", 1), ("b", 2)}
    assert {(r.tier, r.priority) for r in of("classify", requests)} == {("a", 1)}
    assert {r.priority for r in of("chat", requests)} == {0}
    alone = parse(text(EMBED).replace("tiers: {a: {}, b: {}}", "tiers: {b: {}, c: {}, a: {}}"))
    again = schedule(pick_parts(alone, None), 60 * SECOND, 1, 7)
    assert {(r.tier, r.priority) for r in again} == {("a", 3), ("b", 1)}


def test_an_llm_gets_what_its_tiers_names_draw_as_ever() -> None:
    """By hand, as files of one LLM have always drawn: one stream a tier, in the order arrival, output, prompt."""
    random, at, expected = Random("7/a"), 0.0, []
    shape = spec(CHAT).models["chat"].traffic["a"]
    for number in range(20):
        at += random.expovariate(5)
        output = lognormal(random, shape.output)
        lognormal(random, shape.prompt)
        expected.append((f"a-7-{number}", "chat", "a", int(at * SECOND), output))
    for files in ((CHAT,), (EMBED, CHAT)):
        found = of("chat", planned(*files))[:20]
        assert [(r.id, r.model, r.tier, r.at, r.max_tokens) for r in found] == expected


def test_two_llms_do_not_send_at_the_same_moments() -> None:
    second = CHAT.replace("chat:", "other:")
    both = planned(CHAT, second)
    assert of("chat", both) == planned(CHAT)
    assert not {r.at for r in of("chat", both)} & {r.at for r in of("other", both)}
    alone = schedule(pick_parts(spec(CHAT, second), "other"), 60 * SECOND, 1, 7)
    assert alone == of("other", both)


def test_arrivals_of_a_model_that_answers_in_one_piece_are_a_poisson_process() -> None:
    requests = of("classify", planned(CLASSIFY, seconds=100))
    gaps = [(after.at - before.at) / SECOND for before, after in pairwise(requests)]
    assert len(requests) == pytest.approx(5000, rel=0.05)  # three and a half standard deviations
    assert mean(gaps) == pytest.approx(0.02, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.02, rel=0.08)  # exponential: deviation equals mean
    assert [r.item for r in requests[: POOL + 2]] == [*range(POOL), 0, 1]
    assert {(r.text, r.max_tokens) for r in requests} == {("", 0)}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model repository whose tokenizer takes letters for tokens, and cuts and fills to 16 of them as encoders do."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern="", behavior="isolated")
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    (tmp_path / "model_repository" / "embed" / "1").mkdir(parents=True)
    path = tmp_path / "model_repository" / "embed" / "1" / "tokenizer.json"
    tokenizer.save(str(path))
    monkeypatch.chdir(tmp_path)
    return path


def test_texts_have_their_length_in_the_models_own_tokens_and_at_most_the_models(repository: Path) -> None:
    requests = planned(EMBED, seconds=100)
    assert all(request.item is None and request.max_tokens == 0 for request in requests)
    lengths = sorted(len(request.text) for request in of("embed", requests, "a"))
    assert max(lengths) <= 100 and sum(99 <= length <= 100 for length in lengths) > len(lengths) * 0.05  # cut to it
    assert median(lengths) == pytest.approx(20, rel=0.12)
    assert {len(request.text) for request in of("embed", requests, "b")} == {6, 7}  # a blank at either end is dropped


def test_prompts_are_not_cut_or_filled_as_the_tokenizer_says(repository: Path) -> None:
    text = by_tokenizer(repository).draw(Random(0), 1000)
    assert len(text) == pytest.approx(1000, abs=2)


def test_pictures_are_those_of_their_number_and_compress_like_photographs() -> None:
    first, again, other = picture(0), picture(0), picture(1)
    assert first == again != other
    for data in (first, other):
        image = Image.open(BytesIO(data))
        assert image.format == "JPEG" and 450 <= image.width <= 550 and image.height == image.width * 3 // 4
        pixels = np.asarray(image.convert("L"), dtype=float)
        assert pixels.std() > 20  # not one colour
        assert np.abs(np.diff(pixels, axis=1)).mean() < 6  # neighbours are alike


def metadata(*tensors: tuple[str, str, list[int]]) -> SimpleNamespace:
    return SimpleNamespace(inputs=[SimpleNamespace(name=n, datatype=t, shape=s) for n, t, s in tensors])


def sent(of: SimpleNamespace, request: Planned) -> dict[str, tuple[str, list[int], bytes]]:
    made = unary.inputs_of(of)(request)
    return {tensor.name: (tensor.datatype, list(tensor.shape), tensor.raw) for tensor in made}


def test_inputs_are_what_the_model_says_it_takes() -> None:
    text = metadata(("text", "BYTES", [-1, 1]))
    assert unary.takes_text(text)
    request = Planned("x", "m", "a", 0, "Grüße")
    assert sent(text, request) == {"text": ("BYTES", [1, 1], b"\x07\0\0\0" + "Grüße".encode())}
    image = metadata(("pixels", "FP32", [-1, 3, 8, 8]), ("image", "BYTES", [-1, 1]))
    jpeg = picture(3)
    expected = {"image": ("BYTES", [1, 1], len(jpeg).to_bytes(4, "little") + jpeg)}
    assert sent(image, Planned("x", "m", "a", 0, item=3)) == expected


def test_arrays_have_a_batch_of_one_and_eight_where_a_dimension_is_open() -> None:
    arrays = metadata(
        ("f", "FP32", [-1, 3, -1]), ("h", "FP16", [-1, 2]), ("i", "INT64", [-1, -1]), ("b", "BOOL", [-1, 64]),
        ("s", "BYTES", [-1, 2]),
    )  # fmt: skip
    assert not unary.takes_text(arrays)
    found = sent(arrays, Planned("x", "m", "a", 0, item=2))
    shapes = {name: (datatype, shape) for name, (datatype, shape, _) in found.items()}
    assert shapes == {
        "f": ("FP32", [1, 3, 8]), "h": ("FP16", [1, 2]), "i": ("INT64", [1, 8]), "b": ("BOOL", [1, 64]),
        "s": ("BYTES", [1, 2]),
    }  # fmt: skip
    floats = np.frombuffer(found["f"][2], dtype=np.float32)
    assert len(floats) == 24 and 0.3 < floats.std() < 2
    whole = np.frombuffer(found["i"][2], dtype=np.int64)
    assert len(whole) == 8 and len(set(whole)) > 2 and 0 <= whole.min() <= whole.max() < 100
    assert set(found["b"][2]) == {0, 1}
    assert found == sent(arrays, Planned("y", "m", "b", 9, item=2)) != sent(arrays, Planned("x", "m", "a", 0, item=3))
