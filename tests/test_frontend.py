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
    """Takes its time over the question whether it is still there; an answer meanwhile would free what is asked with."""

    def __init__(self) -> None:
        self.asking = threading.Event()
        self.go_on = threading.Event()
        self.noted: list[str] = []

    def answer(self, answer: Answer) -> None:
        self.noted.append("answered")

    def fail(self, fault: Fault, message: str) -> None: ...

    def is_cancelled(self) -> bool:
        self.asking.set()
        self.go_on.wait(5)
        self.noted.append("asked")
        return False


def test_a_last_answer_does_not_go_out_while_its_client_is_asked_after() -> None:
    """tritonserver died of it: the request's last response frees the object with which the stub asks."""
    service: Any = Held()
    frontend, client = Frontend(service, "default", lambda tier, output: None), Slow()
    frontend.take("r", RawRequest(input_ids=(1, 2), parameters="{}"), client)
    keeper = threading.Thread(target=frontend.cancel_left)
    keeper.start()
    assert client.asking.wait(5)
    last = Output(text="x", tokens=(5,), finish_reason=FinishReason.LENGTH, usage=Usage(2, 0, 1))
    sender = threading.Thread(target=service.on_output, args=(last,))
    sender.start()
    sender.join(0.2)
    assert client.noted == []
    client.go_on.set()
    sender.join(5)
    keeper.join(5)
    frontend.cancel_left()
    assert client.noted == ["asked", "answered"] and frontend.open == 0
