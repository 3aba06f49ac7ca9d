"""Engines on a real Triton die and end: who waits is told, neighbours serve on, and SIGTERM answers what was asked."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from engine_clients import infer, stub_of, tensors, texts
from engine_models import array_engine, minilm, repository, summed, text_engine
from serving import Serving, region, serve, wait_for
from tritonclient.utils import InferenceServerException

LONG = texts(*["word " * 200] * 8)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    engines = {"words": text_engine(tmp_path / "words"), "sums": array_engine(tmp_path / "sums"), "embed": minilm()}
    with serve(repository(tmp_path / "repository", **engines), tmp_path, model="words") as serving:
        yield serving


def words_answer(serving: Serving) -> bool:
    try:
        serving.read_facts()
        found = infer(serving, "words", timeout=5, text=texts("a lazy fox"))
    except (InferenceServerException, OSError):
        return False
    return bool(np.allclose(found["sum"][0], summed("a lazy fox"), atol=1e-5))


def sums_answer(serving: Serving) -> bool:
    try:
        found = infer(serving, "sums", timeout=5, a=np.ones((1, 3), np.float32), b=np.full((1, 2), 4))
    except (InferenceServerException, OSError):
        return False
    return found["total"].tolist() == [[9, 9, 9]]


def embeds(serving: Serving) -> bool:
    try:
        serving.read_facts()
        found = infer(serving, "embed", timeout=20, text=LONG)["sentence_embedding"]
    except (InferenceServerException, OSError):
        return False
    return bool(np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-4))


@contextmanager
def in_flight(serving: Serving, model: str, count: int, **arrays: Any) -> Iterator[queue.Queue[Any]]:
    """`count` requests that the server holds; their ends come as outputs or errors."""
    ends: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{serving.facts['grpc_port']}") as client:
        for _ in range(count):
            client.async_infer(model, tensors(arrays), lambda result, error: ends.put(error or result))
        wait_for(lambda: serving.metric("nv_inference_pending_request_count", model=model) >= count / 2)
        yield ends


def test_an_idle_engine_that_dies_is_loaded_again_beside_its_neighbours(serving: Serving) -> None:
    assert words_answer(serving) and sums_answer(serving)
    server, stub, other = serving.facts["server_pid"], stub_of(serving, "words"), stub_of(serving, "sums")
    shared = region(stub)
    os.kill(stub, signal.SIGKILL)
    wait_for(lambda: any("words answers again after" in line for line in serving.lines))
    assert words_answer(serving) and sums_answer(serving)
    assert stub_of(serving, "words") != stub and stub_of(serving, "sums") == other
    assert serving.facts["server_pid"] == server and not shared.exists()
    assert any("words died; loading it again" in line for line in serving.lines)


def test_an_engine_that_dies_at_work_leaves_nobody_waiting(serving: Serving) -> None:
    with in_flight(serving, "embed", 12, text=LONG) as ends:
        stub = stub_of(serving, "embed")
        os.kill(stub, signal.SIGKILL)
        found = [ends.get(timeout=30) for _ in range(12)]
    assert any(isinstance(end, InferenceServerException) for end in found)
    wait_for(lambda: embeds(serving), 60)
    wait_for(lambda: words_answer(serving) and sums_answer(serving))
    assert stub_of(serving, "embed") != stub
    assert serving.stop() == 0


def test_a_frozen_engine_is_replaced(serving: Serving) -> None:
    stub = stub_of(serving, "words")
    os.kill(stub, signal.SIGSTOP)
    assert sums_answer(serving)
    wait_for(lambda: not Path(f"/proc/{stub}/exe").exists(), 60)
    wait_for(lambda: words_answer(serving) and sums_answer(serving), 60)
    assert stub_of(serving, "words") != stub


def test_the_only_engine_is_brought_back_with_its_server(tmp_path: Path) -> None:
    where = repository(tmp_path / "repository", words=text_engine(tmp_path / "words"))
    with serve(where, tmp_path, model="words") as serving:
        stub, server = stub_of(serving, "words"), serving.facts["server_pid"]
        os.kill(stub, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{server}/exe").exists())
        wait_for(lambda: words_answer(serving), 60)
        assert any("words died; starting the server anew" in line for line in serving.lines)
        assert serving.stop() == 0


def test_sigterm_answers_what_was_asked_and_ends_with_0(serving: Serving) -> None:
    server, stubs = serving.facts["server_pid"], [stub_of(serving, name) for name in ("words", "sums", "embed")]
    with in_flight(serving, "embed", 10, text=LONG) as ends:
        assert ends.qsize() < 10
        serving.process.send_signal(signal.SIGTERM)
        for _ in range(10):
            end = ends.get(timeout=60)
            assert not isinstance(end, Exception), end
            embeddings = end.as_numpy("sentence_embedding")
            np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), np.ones(8), atol=1e-4)
    assert serving.process.wait(40) == 0
    for pid in (server, *stubs):
        assert not Path(f"/proc/{pid}").exists()
    assert not serving.ready_file.exists()


def test_an_engine_that_has_died_takes_no_time_from_those_that_work_at_the_end(serving: Serving) -> None:
    """What died at work stays in the server for ever; the end neither waits for it nor forgets the others."""
    with in_flight(serving, "embed", 12, text=LONG):
        os.kill(stub_of(serving, "embed"), signal.SIGKILL)
        wait_for(lambda: any("embed answers again after" in line for line in serving.lines), 60)
    wait_for(lambda: embeds(serving), 60)
    with in_flight(serving, "embed", 24, text=LONG) as ends:
        serving.process.send_signal(signal.SIGTERM)
        assert all(not isinstance(ends.get(timeout=60), Exception) for _ in range(24))
    assert serving.process.wait(40) == 0


def test_while_it_ends_new_requests_are_refused(serving: Serving) -> None:
    with in_flight(serving, "embed", 10, text=LONG) as ends:
        serving.process.send_signal(signal.SIGTERM)
        refusals: list[str] = []

        def until_refused() -> bool:
            try:
                infer(serving, "words", timeout=5, text=texts("dog"))
            except InferenceServerException as error:
                refusals.append(str(error))
            return bool(refusals)

        wait_for(until_refused)
        assert all(not isinstance(ends.get(timeout=60), Exception) for _ in range(10))
    assert serving.process.wait(40) == 0
