"""The service's threads on a scripted executor with the real tokenizer: text, stop strings, errors, draining."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from decode import service as service_module
from decode.config import EngineConfig, TierConfig
from decode.engine import Engine
from decode.executors.scripted import ScriptedExecutor
from decode.plan import Cancel, Chunk, Finished, StepPlan, StepResult
from decode.service import MAX_FAILURES, Service, _Inbox
from decode.stream import Output, Stream
from decode.text import Tokenizer
from decode.types import FinishReason, RejectReason, Request, SamplingParams, Usage

TEXT = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 👩‍🚀 done, and on it goes without an end."


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_dir)


class Collected:
    """One client: its outputs, and a flag for the last."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.ended = threading.Event()
        self.threads: set[str] = set()

    def __call__(self, output: Output) -> None:
        assert not self.ended.is_set(), "an output after the last"
        self.outputs.append(output)
        self.threads.add(threading.current_thread().name)
        if output.final:
            self.ended.set()

    def wait(self) -> Output:
        assert self.ended.wait(20), "the request never ended"
        return self.outputs[-1]

    @property
    def text(self) -> str:
        return "".join(o.text for o in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [t for o in self.outputs for t in o.tokens]


class Slow(ScriptedExecutor):
    """Takes real time, so that requests overlap with what the test does."""

    def __init__(self, token: Callable[[Chunk], int], seconds: float = 0.002) -> None:
        super().__init__(token)
        self.seconds = seconds
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self.seconds)
        self.plans.append(plan)
        return super().execute(plan)


def script(tokenizer: Tokenizer, prompt: int) -> Callable[[Chunk], int]:
    """Says TEXT again and again after a prompt of `prompt` tokens."""
    ids = tokenizer.encode(TEXT)
    return lambda chunk: ids[(chunk.draw.position - prompt) % len(ids)]  # type: ignore[union-attr]


CONFIG = EngineConfig(
    num_pages=200, page_size=8, max_num_seqs=8, max_model_len=500, tiers=(TierConfig("default"), TierConfig("low"))
)


@pytest.fixture
def start(tokenizer: Tokenizer) -> Iterator[Callable[[ScriptedExecutor], Service]]:
    services: list[Service] = []

    def make(executor: ScriptedExecutor) -> Service:
        services.append(Service(Engine(CONFIG), executor, tokenizer))
        return services[-1]

    yield make
    for service in services:
        service.close(0)


def ask(name: str, out: int, **sampling: object) -> Request:
    return Request(name, (5, 6, 7), SamplingParams(max_tokens=out, seed=0, **sampling))  # type: ignore[arg-type]


def test_text_arrives_in_pieces_that_add_up(tokenizer: Tokenizer, start: Callable[..., Service]) -> None:
    ids = tokenizer.encode(TEXT)
    service, client = start(Slow(script(tokenizer, 3))), Collected()
    service.submit(ask("a", len(ids)), client)
    last = client.wait()
    assert client.text == TEXT and client.tokens == list(ids)
    assert last.finish_reason is FinishReason.LENGTH and len(client.outputs) > 5
    assert last.usage is not None and last.usage.output_tokens == len(ids)
    assert client.threads == {"gapless-send"}
    assert last.ttft is not None and last.e2e is not None and last.queue is not None
    assert 0 <= last.queue <= last.ttft <= last.e2e and len(last.itl) == len(ids) - 1
    assert last.ttft + sum(last.itl) <= last.e2e


def test_a_stop_string_cuts_the_text_and_ends_the_request_in_the_engine(
    tokenizer: Tokenizer, start: Callable[..., Service]
) -> None:
    executor = Slow(script(tokenizer, 3))
    service, client = start(executor), Collected()
    service.submit(ask("a", 400, stop=("nowhere", "Sylter De")), client)
    last = client.wait()
    assert client.text == TEXT[: TEXT.index("Sylter De")]
    assert last.finish_reason is FinishReason.STOP and last.usage is not None
    assert last.usage.output_tokens == len(client.tokens)
    while service.stats().running:
        time.sleep(0.001)
    assert len(executor.plans) < len(client.tokens) + 20  # it did not go on to 400
    again = Collected()
    service.submit(ask("a", 2), again)  # its id is free again
    assert again.wait().finish_reason is FinishReason.LENGTH


def test_a_slow_client_stalls_neither_steps_nor_loses_tokens(
    tokenizer: Tokenizer, start: Callable[..., Service]
) -> None:
    executor = Slow(script(tokenizer, 3), seconds=0.001)
    service, client = start(executor), Collected()

    def slow(output: Output) -> None:
        time.sleep(0.2)
        client(output)

    service.submit(ask("a", 100), slow)
    client.wait()
    assert len(client.tokens) == 100
    assert len(client.outputs) < 50  # what piled up went out together
    told = 0
    for output in client.outputs:
        told += len(output.tokens)
        assert output.usage is not None and output.usage.output_tokens == told


def test_a_client_that_raises_ends_only_itself(tokenizer: Tokenizer, start: Callable[..., Service]) -> None:
    service, good = start(Slow(script(tokenizer, 3))), Collected()

    def broken(output: Output) -> None:
        raise OSError("gone")

    service.submit(ask("bad", 400), broken)
    service.submit(ask("good", 30), good)
    assert good.wait().finish_reason is FinishReason.LENGTH
    while service.stats().running:
        time.sleep(0.001)
    assert service.stats().output_tokens < 200


def test_an_id_in_use_is_refused_and_its_owner_goes_on(tokenizer: Tokenizer, start: Callable[..., Service]) -> None:
    service, first, second = start(Slow(script(tokenizer, 3))), Collected(), Collected()
    service.submit(ask("a", 50), first)
    service.submit(ask("a", 50), second)
    assert second.wait().reject is RejectReason.INVALID
    assert first.wait().finish_reason is FinishReason.LENGTH and len(first.tokens) == 50


def test_a_step_that_raises_gives_its_error_to_all_in_flight_and_service_goes_on(
    tokenizer: Tokenizer, start: Callable[..., Service]
) -> None:
    class Once(Slow):
        broken = False

        def execute(self, plan: StepPlan) -> StepResult:
            if len(self.plans) == 5 and not self.broken:
                self.broken = True
                raise ArithmeticError("no more numbers")
            return super().execute(plan)

    service = start(Once(script(tokenizer, 3)))
    clients = [Collected() for _ in range(3)]
    for i, client in enumerate(clients):
        service.submit(ask(f"r{i}", 300), client)
    for client in clients:
        last = client.wait()
        assert last.finish_reason is FinishReason.ERROR and "ArithmeticError: no more numbers" in last.message
    after = Collected()
    service.submit(ask("after", 3), after)
    assert after.wait().finish_reason is FinishReason.LENGTH and service.healthy


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_keeps_failing_turns_unhealthy_and_leaves_nobody_waiting(
    tokenizer: Tokenizer, start: Callable[..., Service]
) -> None:
    class Broken(Slow):
        def execute(self, plan: StepPlan) -> StepResult:
            raise ArithmeticError("for good")

    service = start(Broken(script(tokenizer, 3)))
    for i in range(MAX_FAILURES):
        client = Collected()
        service.submit(ask(f"r{i}", 5), client)
        assert client.wait().finish_reason is FinishReason.ERROR
    deadline = time.monotonic() + 10
    while service.healthy and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not service.healthy and service.failure is not None
    late = Collected()
    service.submit(ask("late", 5), late)
    assert late.wait().reject is RejectReason.UNHEALTHY


def test_closing_finishes_what_runs_and_refuses_the_rest(tokenizer: Tokenizer, start: Callable[..., Service]) -> None:
    service, running, late = start(Slow(script(tokenizer, 3))), Collected(), Collected()
    service.submit(ask("a", 60), running)
    while not running.outputs:
        time.sleep(0.001)
    closer = threading.Thread(target=service.close, args=(20,))
    closer.start()
    time.sleep(0.02)
    service.submit(ask("late", 5), late)
    assert late.wait().reject is RejectReason.SHUTTING_DOWN
    assert running.wait().finish_reason is FinishReason.LENGTH and len(running.tokens) == 60
    closer.join(20)
    assert not closer.is_alive()


def test_closing_cancels_what_outlasts_the_drain(tokenizer: Tokenizer, start: Callable[..., Service]) -> None:
    service, client = start(Slow(script(tokenizer, 3), seconds=0.02)), Collected()
    service.submit(ask("a", 400), client)
    while not client.outputs:
        time.sleep(0.001)
    service.close(0.05)
    assert client.ended.is_set() and client.outputs[-1].finish_reason is FinishReason.CANCELLED
    assert not any(thread.name.startswith("gapless-") for thread in threading.enumerate())


def test_inputs_are_handed_out_once_in_order_and_never_before_they_arrived() -> None:
    """A step takes the time, then its inputs; one that came in between once started before it was submitted."""
    inbox = _Inbox()
    before = time.monotonic_ns()
    inbox.put(Cancel("a"))
    inbox.put(Cancel("b"))
    assert list(inbox.due(before - 1)) == [] and inbox.wait()
    assert list(inbox.due(time.monotonic_ns())) == [Cancel("a"), Cancel("b")]
    assert list(inbox.due(time.monotonic_ns())) == []


def test_closing_an_inbox_loses_nothing_and_wakes_who_waits() -> None:
    inbox, woken = _Inbox(), []
    waiter = threading.Thread(target=lambda: woken.append(inbox.wait()), daemon=True)
    waiter.start()
    time.sleep(0.02)
    inbox.close()
    waiter.join(20)
    assert woken == [False]
    inbox.put(Cancel("a"))
    assert inbox.wait() and len(inbox.due(time.monotonic_ns())) == 1 and not inbox.wait()


def test_an_id_is_free_again_once_its_last_output_is_out(tokenizer: Tokenizer, start: Callable[..., Service]) -> None:
    """After a stop string the engine ends a step later than the client sees; the client need not know that."""
    service, first, second = start(Slow(script(tokenizer, 3))), Collected(), Collected()

    def again(output: Output) -> None:
        first(output)
        if output.final:
            service.submit(ask("a", 40), second)
            raise OSError("gone")  # nor does trouble with the first request touch its successor

    service.submit(ask("a", 400, stop=("Boxk",)), again)
    assert first.wait().finish_reason is FinishReason.STOP
    last = second.wait()
    assert last.finish_reason is FinishReason.LENGTH and len(second.tokens) == 40


def test_a_late_cancel_does_not_end_the_next_request_with_that_id(
    tokenizer: Tokenizer, start: Callable[..., Service]
) -> None:
    service, first, second = start(Slow(script(tokenizer, 3), seconds=0.02)), Collected(), Collected()
    service.submit(ask("a", 2), first)
    first.wait()
    service.cancel("a")
    service.submit(ask("a", 3), second)
    assert second.wait().finish_reason is FinishReason.LENGTH
    third = Collected()
    service.submit(ask("a", 400), third)
    while not third.outputs:
        time.sleep(0.001)
    service.cancel("a")
    assert third.wait().finish_reason is FinishReason.CANCELLED


def test_a_stop_string_in_text_held_to_the_end_counts_as_a_stop(
    tokenizer: Tokenizer, start: Callable[..., Service]
) -> None:
    """The emoji could go on, so it is held back until the request ends."""
    whole = TEXT[: TEXT.index("🚀") + 1]
    ids = tokenizer.encode(TEXT)
    count = next(n for n in range(len(ids)) if tokenizer.decode(ids[:n]) == whole)
    service, client = start(Slow(script(tokenizer, 3))), Collected()
    service.submit(ask("a", count, stop=("🚀",)), client)
    assert client.wait().finish_reason is FinishReason.STOP
    assert client.text == whole[:-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sender_that_dies_leaves_nobody_waiting(
    tokenizer: Tokenizer, start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, clients = start(Slow(script(tokenizer, 3))), [Collected() for _ in range(3)]
    for i, client in enumerate(clients):
        service.submit(ask(f"r{i}", 400), client)
    while not clients[0].outputs:
        time.sleep(0.001)

    def broken(*args: object) -> None:
        raise ArithmeticError("no text")

    monkeypatch.setattr(Stream, "absorb", broken)
    for client in clients:
        last = client.wait()
        assert last.finish_reason is FinishReason.ERROR and last.message == "ArithmeticError: no text"
    assert not service.healthy and service.failure == "ArithmeticError: no text"
    late = Collected()
    service.submit(ask("late", 5), late)
    assert late.wait().reject is RejectReason.UNHEALTHY
    steps = service.stats().steps
    time.sleep(0.1)
    assert service.stats().steps <= steps + 1  # it does not compute what nobody gets


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_whatever_a_client_raises_the_others_get_their_text(
    tokenizer: Tokenizer, start: Callable[..., Service], error: type[BaseException]
) -> None:
    service, good = start(Slow(script(tokenizer, 3))), Collected()

    def broken(output: Output) -> None:
        raise error

    service.submit(ask("bad", 400), broken)
    service.submit(ask("good", 60), good)
    assert good.wait().finish_reason is FinishReason.LENGTH and service.healthy
    while service.stats().running:
        time.sleep(0.001)
    assert service.stats().output_tokens < 200


def test_closing_while_a_step_hangs_ends_its_requests_all_the_same(
    tokenizer: Tokenizer, start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PATIENCE", 0.1)
    free = threading.Event()

    class Stuck(Slow):
        def execute(self, plan: StepPlan) -> StepResult:
            if len(self.plans) == 3:
                free.wait(20)
            return super().execute(plan)

    service, client = start(Stuck(script(tokenizer, 3))), Collected()
    service.submit(ask("a", 50), client)
    while len(client.tokens) < 3:
        time.sleep(0.001)
    assert service.busy_since is not None
    service.close(0)
    last = client.wait()
    free.set()
    assert last.finish_reason is FinishReason.CANCELLED and last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.output_tokens) == (3, 3)


@pytest.mark.parametrize("ending", ["close", "break"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whenever_it_ends_every_request_of_many_threads_ends_once(
    tokenizer: Tokenizer, start: Callable[..., Service], ending: str
) -> None:
    stop = threading.Event()

    class Breaks(Slow):
        def execute(self, plan: StepPlan) -> StepResult:
            if ending == "break" and stop.is_set():
                raise ArithmeticError("for good")
            return super().execute(plan)

    service = start(Breaks(script(tokenizer, 3), seconds=0.001))
    clients: list[list[Collected]] = [[] for _ in range(4)]

    def submit(number: int) -> None:
        for i in range(150):
            client = Collected()
            clients[number].append(client)
            service.submit(ask(f"{number}-{i}", 1 + i % 7, stop=("Box",) if i % 3 else ()), client)
            if i % 5 == 0:
                service.cancel(f"{number}-{i}")
            time.sleep(0.0005)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    stop.set()
    if ending == "close":
        service.close(0.01)
    for thread in threads:
        thread.join(20)
    ends = [client.wait() for group in clients for client in group]
    assert len(ends) == 600 and all(len([o for o in c.outputs if o.final]) == 1 for g in clients for c in g)
    assert all(end.queue is None or end.queue >= 0 for end in ends)
    assert any(end.finish_reason in (FinishReason.LENGTH, FinishReason.STOP) for end in ends)
    assert ends[-1].reject is (RejectReason.SHUTTING_DOWN if ending == "close" else RejectReason.UNHEALTHY)


def test_an_end_that_comes_twice_changes_nothing(tokenizer: Tokenizer, start: Callable[..., Service]) -> None:
    """Closing says it once more for whatever a hanging step may have left; mostly all has ended by then."""
    service, client = start(Slow(script(tokenizer, 3))), Collected()
    service.submit(ask("a", 5), client)
    client.wait()
    for name in ("a#0", "never seen"):
        service.emit([Finished(name, FinishReason.CANCELLED, Usage(0, 0, 0), 0)])
    after = Collected()
    service.submit(ask("b", 5), after)
    assert after.wait().finish_reason is FinishReason.LENGTH and service.healthy and len(client.tokens) == 5
