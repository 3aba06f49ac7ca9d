"""A model for tests of the serving path: the real edge, service and engine over an executor that draws by rule.

Token `position` of every answer is 300 + position % 64. A prompt that holds RAISE makes its step raise, one that holds
DIE ends the engine's thread. The parameter `tiers` takes the place of TIERS; `mode` is the engine's (both may come
from the launcher's options, too), and `steps_to` names a file for its step log.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from decode.clock import WallClock
from decode.config import EngineConfig, TierConfig
from decode.engine import Engine
from decode.options import ServiceOptions
from decode.plan import StepPlan, StepResult
from decode.service import Service
from decode.step_file import StepFile
from decode.step_log import StepLog
from decode.supervision import OPTIONS
from decode.text import Tokenizer

RAISE, DIE = 40001, 40002
TIERS = (TierConfig("interactive"), TierConfig("batch", max_queue=2))


class ScriptedExecutor:
    def __init__(self, step_seconds: float) -> None:
        self._seconds = step_seconds
        self.profile: dict[str, float] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        prompts = [token for chunk in plan.chunks for token in chunk.tokens]
        if RAISE in prompts:
            raise RuntimeError("planted failure")
        if DIE in prompts:
            raise SystemExit("planted death")
        time.sleep(self._seconds)
        tokens = [300 + chunk.draw.position % 64 if chunk.draw else None for chunk in plan.chunks]
        return StepResult(tuple(tokens), int(self._seconds * 1e9))


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        from decode import stub, triton_io  # the process that only reads the configuration has no TritonError

        stub.check_numpy()
        parameters = json.loads(args["model_config"])["parameters"]
        given = {name: one["string_value"] for name, one in parameters.items()}
        given |= json.loads(os.environ.get(OPTIONS) or "{}")  # of the launcher, as the real model takes them
        told = {name: given[name] for name in ("tiers", "mode") if name in given}
        options = ServiceOptions.from_parameters(told)
        tiers = options.tiers if "tiers" in told else TIERS
        config = EngineConfig(
            num_pages=1024,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=2048,
            mode=options.mode,
            tiers=tiers,
            vocab_size=49152,
        )
        executor = ScriptedExecutor(float(parameters["step_seconds"]["string_value"]))
        tokenizer = Tokenizer.load(Path(parameters["tokenizer"]["string_value"]))
        engine, log = Engine(config), None
        if "steps_to" in parameters:
            file = StepFile(Path(parameters["steps_to"]["string_value"]), config)
            log = StepLog(engine, file.take, WallClock())
        service = Service(engine, executor, tokenizer, log, log.phase if log else None)
        self.model = triton_io.ChatModel(args["model_name"], service, ServiceOptions(tiers=tiers))

    def execute(self, requests: list[Any]) -> None:
        self.model.execute(requests)

    def finalize(self) -> None:
        self.model.close()
