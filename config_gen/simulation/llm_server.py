"""The production driver, engine and scheduler of one LLM on an event loop, beside others on the same device.

`decode.simulator` runs one engine alone and is the oracle of this one. Must not know the SLA file.
"""

from __future__ import annotations

from collections.abc import Callable

from config_gen.simulation.device import Place
from config_gen.simulation.events import Events
from config_gen.simulation.serving import Decoding
from decode.driver import Driver, Round
from decode.engine import Engine
from decode.executors.cost_model import CostModelExecutor
from decode.plan import Input, Submit
from decode.simulator import Recorder
from decode.types import Request
from decode.warm_up import warm_up


class _Now:
    """The driver's clock: time is the event loop's."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def now(self) -> int:
        return self._events.now

    def spend(self, elapsed: int) -> None:
        raise AssertionError("its rounds are begun and finished by events")


class _Inbox:
    """The driver's source: what was submitted since the last step."""

    def __init__(self) -> None:
        self.items: list[Input] = []

    def due(self, now: int) -> list[Input]:
        items, self.items = self.items, []
        return items

    def wait(self) -> bool:
        return False


class LlmServer:
    """One engine whose steps take what `law` says, longer while others use its device.

    `pages_peak` is the largest share of KV pages in use after a step.
    """

    def __init__(
        self,
        events: Events,
        place: Place,
        one: Decoding,
        recorder: Recorder,
        sent: Callable[[int], None],
    ) -> None:
        """`recorder` hears what becomes of requests, `sent` how many tokens each step gives."""
        config, self._cold = one.config, one.cold
        executor = CostModelExecutor(one.law, config.swap_page_time)
        self.engine = Engine(config, warm_up(executor, config))
        self.pages_peak = 0.0
        self._events, self._place, self._sent = events, place, sent
        self._inbox = _Inbox()
        self._driver = Driver(self.engine, executor, _Now(events), self._inbox, recorder)
        self._stepping = False

    def submit(self, request: Request) -> None:
        """A request arrives now; the recorder knows it already."""
        self._inbox.items.append(Submit(request))
        if not self._stepping:
            self._stepping = True
            self._events.at(self._events.now, self._step)

    def _step(self) -> None:
        begun = self._driver.begin()
        if begun.result is None:
            self._driver.finish(begun)
            if begun.plan is None and not self._inbox.items:
                self._stepping = False
            else:
                self._events.at(self._events.now, self._step)
            return
        self._place.begin(begun.result.elapsed, lambda: self._end(begun), self._cold)

    def _end(self, begun: Round) -> None:
        assert begun.result is not None
        taken = begun.result._replace(elapsed=max(1, self._events.now - begun.now))
        self._driver.finish(begun._replace(result=taken))
        self._sent(sum(token is not None for token in taken.tokens))
        used = 1 - self.engine.cache.available / self.engine.config.num_pages
        self.pages_peak = max(self.pages_peak, used)
        self._step()
