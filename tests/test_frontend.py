"""The frontend between threads: one that hands out answers, one that asks whether clients are still there."""

from __future__ import annotations

import threading
from typing import Any

from decode.frontend import Answer, Client, Fault, Frontend
from decode.protocol import RawRequest
from decode.stream import OnOutput, Output
from decode.types import FinishReason, Request, Usage


class Held:
    """A service that keeps the callback, for the test to call."""

    failure = None
    healthy = True
    busy_since = None
    most_prompt = 100

    def submit(self, request: Request, on_output: OnOutput) -> None:
        self.on_output = on_output

    def cancel(self, request_id: str) -> None: ...


class Slow(Client):
    """Takes its time over an answer, and notes what it was asked meanwhile: Triton would read freed memory."""

    def __init__(self) -> None:
        self.answering = threading.Event()
        self.go_on = threading.Event()
        self.asked: list[str] = []
        self.ended = False

    def answer(self, answer: Answer) -> None:
        self.answering.set()
        self.go_on.wait(5)
        self.ended = answer.reason is not None
        self.answering.clear()

    def fail(self, fault: Fault, message: str) -> None: ...

    def is_cancelled(self) -> bool:
        self.asked.append("ended" if self.ended else "answering" if self.answering.is_set() else "idle")
        return False


def test_a_client_is_not_asked_after_while_or_once_its_last_answer_is_out() -> None:
    service: Any = Held()
    frontend, client = Frontend(service, "default", lambda tier, output: None), Slow()
    frontend.take("r", RawRequest(input_ids=(1, 2), parameters="{}"), client)
    frontend.cancel_left()
    assert client.asked == ["idle"]
    last = Output(text="x", tokens=(5,), finish_reason=FinishReason.LENGTH, usage=Usage(2, 0, 1))
    sender = threading.Thread(target=service.on_output, args=(last,))
    sender.start()
    assert client.answering.wait(5)
    keeper = threading.Thread(target=frontend.cancel_left)
    keeper.start()
    keeper.join(0.2)
    client.go_on.set()
    sender.join(5)
    keeper.join(5)
    frontend.cancel_left()
    assert client.asked == ["idle"] and client.ended and frontend.open == 0
