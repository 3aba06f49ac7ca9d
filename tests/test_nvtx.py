"""Ranges for Nsight Systems: which, how they nest, and that without a CUDA device nothing of CUDA is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from logged import CONFIG, MS, Logged, ask
from tiny_models import random_model, save_hf

from builders.llm import build_llm
from decode import nvtx
from decode.driver import Driver
from decode.engine import Engine
from decode.executors import weights as weight_files
from decode.executors.cuda_paged import CudaModel
from decode.executors.model_config import ModelConfig
from decode.executors.scripted import ScriptedExecutor
from decode.executors.torch_paged import TorchExecutor
from decode.plan import Chunk, Copy, Draw, StepPlan, StepResult
from decode.types import SamplingParams

GREEDY = SamplingParams(temperature=0, seed=0)
PLAN = StepPlan(0, (Chunk(0, (5, 6, 7), 0, (0,), Draw(GREEDY, 3)),))
DECODE = StepPlan(1, (Chunk(0, (8,), 3, (0,), Draw(GREEDY, 4)),), (Copy(0, 1, 2),))


class Ranges:
    """Stands for torch.cuda.nvtx; `told` has each range with those around it."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.told: list[str] = []

    def push(self, name: str) -> None:
        self.open.append(name)
        self.told.append(" > ".join(self.open))

    def pop(self) -> None:
        self.open.pop()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.push(name)
        yield
        self.pop()


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    seen = Ranges()
    fake = SimpleNamespace(range_push=seen.push, range_pop=seen.pop, range=seen.range)
    monkeypatch.setattr(torch.cuda, "nvtx", fake)
    return seen


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("CUDA is called")

    fake = SimpleNamespace(range_push=refuse, range_pop=refuse, range=refuse)
    monkeypatch.setattr(torch.cuda, "nvtx", fake)
    for name in ("synchronize", "is_available", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, refuse)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = save_hf(random_model("llama"), tmp_path_factory.mktemp("llama"))
    return build_llm(f"hf:{source}", tmp_path_factory.mktemp("built")).out


def test_each_phase_of_a_round_is_a_range_whatever_becomes_of_the_step(ranges: Ranges) -> None:
    run = Logged([(0, ask("a", 3, 2)), (9 * MS, ask("b", 3, 2))])

    class Faulty(ScriptedExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            assert ranges.open == ["execute"]
            if plan.step == 1:
                raise ArithmeticError("planted")
            return super().execute(plan)

    driver = Driver(
        Engine(CONFIG), Faulty(lambda chunk: 7), run.clock, run, run, phases=nvtx.phases(torch.device("cuda", 1))
    )
    while driver.step():
        assert ranges.open == []
    assert ranges.told == ["plan", "execute", "commit", "emit"] * 2 + ["plan", "commit"]


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_on_the_cpu_there_are_no_phases_and_a_range_is_nothing(device: str, forbidden: None) -> None:
    assert nvtx.phases(device) is None
    with nvtx.ranges(device)("a"), nvtx.ranges(device)("b"):
        pass


def test_the_executor_names_what_it_does(built: Path, ranges: Ranges, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card, but for graphs: the CUDA path's class stands on the CPU here."""
    real: Callable[[str], Callable[[str], AbstractContextManager[object]]] = nvtx.ranges
    monkeypatch.setattr(nvtx, "ranges", lambda device: real("cuda"))
    executor = TorchExecutor(built, num_pages=4, page_size=16)
    config = ModelConfig.read(built)
    weights = weight_files.load(built, config, torch.float32)
    executor._model = CudaModel(config, weights, "fp32", 4, 16, torch.device("cpu"))
    executor.execute(PLAN)
    step = ["flatten", "forward", "forward > copy inputs", "sample", "sample > copy back"]
    assert ranges.told == step
    executor.execute(DECODE)
    assert ranges.told == [*step, "copy pages", *step] and ranges.open == []


def test_on_the_cpu_a_step_calls_nothing_of_cuda(built: Path, forbidden: None) -> None:
    executor = TorchExecutor(built, num_pages=4, page_size=16)
    assert len(executor.execute(PLAN).tokens) == len(executor.execute(DECODE).tokens) == 1
