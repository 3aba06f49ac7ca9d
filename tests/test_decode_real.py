"""Engine and driver on the real executor, a tiny random model: however a request is served, its tokens are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from tiny_models import SMALL, random_model, save_hf

from builders.llm import build_llm
from decode.clock import WallClock
from decode.config import EngineConfig
from decode.driver import Driver
from decode.engine import Engine, Stats
from decode.executors.torch_paged import TorchExecutor
from decode.plan import Event, Finished, Input, Submit, TokenOut
from decode.types import FinishReason, Request, SamplingParams

PAGE, PAGES = 16, 64
OUT = 20
Outputs = dict[str, list[int]]


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> TorchExecutor:
    source = save_hf(random_model("llama"), tmp_path_factory.mktemp("tiny"))
    directory = build_llm(f"hf:{source}", tmp_path_factory.mktemp("built")).out
    torch.set_num_threads(2)
    return TorchExecutor(directory, num_pages=PAGES, page_size=PAGE, host_pages=PAGES)


class World:
    """Source and sink: `late` requests come once the first ones have ended."""

    def __init__(self, first: Sequence[Request], late: Sequence[Request] = ()) -> None:
        self.todo, self.late = list(first), list(late)
        self.events: list[Event] = []

    def due(self, now: int) -> Sequence[Input]:
        items, self.todo = [Submit(request) for request in self.todo], []
        return items

    def wait(self) -> bool:
        self.todo, self.late = self.late, []
        return bool(self.todo)

    def emit(self, events: Sequence[Event]) -> None:
        self.events += events


def asked(name: str, prompt: Sequence[int]) -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_tokens=OUT, temperature=0, ignore_eos=True, seed=0))


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2, SMALL["vocab_size"]), k=count)


def mixed() -> list[Request]:
    """Prompts of many lengths; some begin alike, for less than a page, a page, a token more, and several pages."""
    common = words(64, 0)
    shared = [
        asked(f"shared{n}-{length}", common[:length] + words(5, 100 + n))
        for length in (15, 16, 17, 48)
        for n in range(2)
    ]
    return [*shared, *(asked(f"own{n}", words(n, 200 + n)) for n in (1, 16, 33, 70))]


def served(
    executor: TorchExecutor, requests: Sequence[Request], late: Sequence[Request] = (), **limits: object
) -> tuple[Outputs, Stats, World]:
    values: dict[str, object] = {"num_pages": PAGES, "page_size": PAGE, "max_num_seqs": 6, "max_model_len": 200}
    engine = Engine(EngineConfig(**{**values, **limits}))  # type: ignore[arg-type]
    world = World(requests, late)
    Driver(engine, executor, WallClock(), world, world).run()
    engine.check()
    outputs: Outputs = {request.id: [] for request in [*requests, *late]}
    for event in world.events:
        if isinstance(event, TokenOut):
            outputs[event.request_id].append(event.token)
    ends = {e.request_id: e.reason for e in world.events if isinstance(e, Finished)}
    assert ends == dict.fromkeys(outputs, FinishReason.LENGTH)
    assert all(len(tokens) == OUT for tokens in outputs.values())
    return outputs, engine.stats(), world


@pytest.fixture(scope="module")
def alone(executor: TorchExecutor) -> Outputs:
    """The tokens of each request served by itself: no cache, no batch, its whole prompt in one step."""
    return {
        request.id: served(executor, [request], prefix_cache=False, max_num_seqs=1)[0][request.id]
        for request in mixed()
    }


def test_requests_differ_so_that_a_mix_up_would_show(alone: Outputs) -> None:
    assert len(set(map(tuple, alone.values()))) == len(alone)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_cached_prompts_give_the_same_tokens(executor: TorchExecutor, alone: Outputs, prefix_cache: bool) -> None:
    again = [asked(f"again-{request.id}", request.prompt) for request in mixed()]
    outputs, stats, world = served(executor, mixed(), again, prefix_cache=prefix_cache)
    assert outputs == alone | {f"again-{name}": tokens for name, tokens in alone.items()}
    cached = {e.request_id: e.usage.cached_tokens for e in world.events if isinstance(e, Finished)}
    if prefix_cache:
        assert all(cached[request.id] == len(request.prompt) - 1 for request in again)
    else:
        assert set(cached.values()) == {0} and stats.prefix_hit_tokens == 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_requests_give_the_same_tokens(executor: TorchExecutor, alone: Outputs, prefix_cache: bool) -> None:
    outputs, stats, _ = served(executor, mixed(), num_pages=8, watermark=0.0, prefix_cache=prefix_cache)
    assert stats.preemptions > 0
    assert outputs == alone


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("host_pages", [3, PAGES])
def test_swapped_requests_give_the_same_tokens(
    executor: TorchExecutor, alone: Outputs, prefix_cache: bool, host_pages: int
) -> None:
    """Pages go out to host memory and come back; when it is full, the rest is computed again."""
    limits = {"num_pages": 8, "watermark": 0.0, "prefix_cache": prefix_cache}
    outputs, stats, _ = served(executor, mixed(), host_pages=host_pages, swap_page_time=1, **limits)
    assert 0 < stats.swaps <= stats.preemptions
    assert host_pages == PAGES or stats.swaps < stats.preemptions
    assert outputs == alone


@pytest.mark.parametrize("mode", ["serial", "static", "continuous"])
def test_modes_give_the_same_tokens(executor: TorchExecutor, alone: Outputs, mode: str) -> None:
    outputs, stats, _ = served(executor, mixed(), mode=mode)
    assert outputs == alone
    tokens = len(alone) * OUT
    assert (stats.steps == tokens) if mode == "serial" else (stats.steps < tokens / 2)


@pytest.mark.parametrize("budget", [6, 7, 16, 23])
def test_prompts_in_chunks_give_the_same_tokens(executor: TorchExecutor, alone: Outputs, budget: int) -> None:
    outputs, stats, _ = served(executor, mixed(), max_num_batched_tokens=budget, prefix_cache=False)
    _, whole, _ = served(executor, mixed(), max_num_batched_tokens=256, prefix_cache=False)
    assert outputs == alone and stats.steps > whole.steps


def test_all_at_once_gives_the_same_tokens(executor: TorchExecutor, alone: Outputs) -> None:
    """Cache, chunks and preemption together."""
    again = [asked(f"again-{request.id}", request.prompt) for request in mixed()]
    outputs, stats, _ = served(executor, mixed(), again, num_pages=8, watermark=0.0, max_num_batched_tokens=11)
    assert stats.preemptions > 0 and stats.prefix_hit_tokens > 0
    assert outputs == alone | {f"again-{name}": tokens for name, tokens in alone.items()}
