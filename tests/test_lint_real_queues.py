"""What the real Triton does with bad batches, queues and instances: refuses them, or takes them and behaves as told."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import lint_pairs_queues
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from lint_server import assert_refused, assert_taken, config_of, loaded, serve
from plain_triton import Answer, Triton

TOGETHER = loaded(lint_pairs_queues.PAIRS)
FULL, EXPIRED = "Exceeds maximum queue size", "Request timeout expired"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with serve(TOGETHER, tmp_path_factory.mktemp("queues") / "models") as started:
        yield started


def together(server: Triton, model: str, *requests: dict[str, object], gap: float = 0.03) -> list[Answer]:
    """Answers to requests that are sent `gap` seconds after each other."""

    def send(place: int) -> Answer:
        time.sleep(place * gap)
        return server.infer(model, **requests[place])  # type: ignore[arg-type]

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send, range(len(requests))))


def test_refused(server: Triton) -> None:
    assert_refused(server, TOGETHER)


def test_taken(server: Triton) -> None:
    assert_taken(server, TOGETHER)


# Batches


def test_no_batches_without_a_batch_size(server: Triton) -> None:
    """The delay of 300 ms is not even waited for."""
    answers = together(server, "batching-off", {"shape": (1,)}, {"shape": (1,)}, gap=0)
    assert [answer["out"] for answer in answers] == [1, 1] and max(answer.seconds for answer in answers) < 0.25


def test_a_preferred_size_splits_what_fits_into_one_batch(server: Triton) -> None:
    answers = together(server, "preferred-splits", *({} for _ in range(7)), gap=0.02)
    assert sorted(answer["out"] for answer in answers) == [1, 2, 2, 4, 4, 4, 4]


def test_a_long_delay_holds_a_request_that_is_alone(server: Triton) -> None:
    assert server.infer("delay-long").seconds > 1.1


def test_a_delay_over_the_timeout_refuses_on_an_idle_server(server: Triton) -> None:
    refused = server.infer("delay-over-timeout")
    assert refused.status == 503 and EXPIRED in refused.text


def test_shapes_and_sets_of_inputs_that_differ_are_not_batched(server: Triton) -> None:
    same = together(server, "variable-dims", {"shape": (1, 2)}, {"shape": (1, 2)})
    other = together(server, "variable-dims", {"shape": (1, 2)}, {"shape": (1, 3)})
    assert [answer["out"] for answer in same + other] == [2, 2, 1, 1]
    same = together(server, "optional-inputs", {}, {})
    other = together(server, "optional-inputs", {}, {"inputs": "in,b"})
    assert [answer["out"] for answer in same + other] == [2, 2, 1, 1]


# Queues


def test_policies_without_levels_bound_nothing(server: Triton) -> None:
    answers = together(server, "policies-without-levels", {}, {}, {}, {})
    assert [answer.status for answer in answers] == [200] * 4


def test_priorities_without_levels_order_nothing(server: Triton) -> None:
    _, first, second = together(server, "default-without-levels", {}, {"priority": 2}, {"priority": 1})
    assert first.seconds < second.seconds


def test_a_lower_level_waits_as_long_as_there_is_a_higher_one(server: Triton) -> None:
    high = [{"priority": 1} for _ in range(12)]
    answers = together(server, "starvation", {}, {"priority": 2}, *high, gap=0.05)
    low = 0.05 + answers[1].seconds  # since the first was sent
    assert all(low > 0.05 * place + answer.seconds for place, answer in enumerate(answers) if place != 1)


def test_a_batcher_with_a_bound_and_one_instance_sleeps_through_its_wake_up(server: Triton) -> None:
    """A race: how often differs, that it happens does not. A request takes 2 ms, of four clients at most 8."""
    until, slowest = time.monotonic() + 60, 0.0
    while time.monotonic() < until and slowest < 0.49:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: server.infer("stall"), range(200)))
        slowest = max(slowest, *(answer.seconds for answer in answers))
    assert slowest > 0.49


def test_an_override_needs_a_default_to_shorten(server: Triton) -> None:
    answers = together(server, "override-without-timeout", {}, {}, {"timeout": 50_000})
    assert [answer.status for answer in answers] == [200] * 3 and answers[2].seconds > 0.5


def test_a_timeout_that_delays_ends_no_wait(server: Triton) -> None:
    answers = together(server, "timeout-only-delays", {}, {}, {})
    assert [answer.status for answer in answers] == [200] * 3 and answers[2].seconds > 0.4


def test_a_timeout_below_a_millisecond_refuses_who_must_wait(server: Triton) -> None:
    answers = together(server, "timeout-unit", {}, {}, {})
    assert [answer.status for answer in answers] == [200, 200, 503] and EXPIRED in answers[2].text


def test_a_queue_below_a_batch_refuses_on_an_idle_server(server: Triton) -> None:
    answers = together(server, "queue-below-batch", *({} for _ in range(6)), gap=0)
    assert sorted(answer.status for answer in answers) == [200, 200, 503, 503, 503, 503]
    assert all(FULL in answer.text for answer in answers if answer.status == 503)


def test_a_queue_bound_holds_back_nothing_of_a_decoupled_model(server: Triton) -> None:
    """Twenty requests of a second each run beside each other in two instances behind a queue of one."""
    answers: queue.Queue[str] = queue.Queue()
    ones = grpcclient.InferInput("in", [1, 1], "INT32").set_data_from_numpy(np.ones((1, 1), dtype=np.int32))
    began = time.monotonic()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.ports['grpc']}") as client:
        client.start_stream(lambda result, error: answers.put(str(error or "")))
        for _ in range(20):  # in a second, not at once: one is queued while one is taken
            client.async_stream_infer("decoupled-queue", [ones])
            time.sleep(0.05)
        assert [answers.get(timeout=20) for _ in range(20)] == [""] * 20
        assert 1 <= time.monotonic() - began < 8  # one after the other it would be 10, by two instances
        client.stop_stream()


# Instances


def test_instances(server: Triton) -> None:
    assert config_of(server, "instance-count")["instance_group"][0]["count"] == 1
    assert server.stubs("python-instances") == 2


def test_a_rate_limiter_that_is_off_limits_nothing(server: Triton) -> None:
    """Two instances that need the one resource run at once."""
    answers = together(server, "rate-limiter-off", {}, {}, gap=0)
    assert max(answer.seconds for answer in answers) < 0.55


def test_a_cache_that_is_off_computes_again(server: Triton) -> None:
    assert [server.infer("cache-off")["runs"] for _ in range(3)] == [1, 2, 3]


def test_a_sequence_that_pauses_is_forgotten(server: Triton) -> None:
    assert server.infer("sequence-idle", sequence_id=7, sequence_start=True).status == 200
    time.sleep(0.3)
    assert server.infer("sequence-idle", sequence_id=7).status == 200
    time.sleep(1.7)
    assert "must specify the START flag" in server.infer("sequence-idle", sequence_id=7).text
