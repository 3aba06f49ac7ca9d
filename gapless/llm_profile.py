"""What a step of a built LLM costs on this machine: `law.json` beside the model, for plans and simulations.

Measured on requests as the SLA file declares them, a few alone and then more at once. Wires the decode loop's
benchmark and the fit of a law; must not know how either works.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

from builders.llm import STAMP
from builders.placing import locked
from builders.profiling import coldness
from builders.progress import Progress, quiet
from config_gen.sla.arrivals import Arrival, arrivals
from config_gen.sla.spec import Lengths, LlmModel, LlmTraffic
from decode import bench
from decode.assembly import build_executor, engine_config
from decode.executors.cost_model import LawError, Measured, Step
from decode.executors.model_config import ModelConfig
from decode.executors.torch_paged import TorchExecutor
from decode.options import ServiceOptions
from decode.types import Request, SamplingParams
from decode.warm_up import plans
from decode.workload import Workload
from gapless.errors import UsageError
from gapless.law import fitted
from gapless.machine import describe

LAW = "law.json"
ALONE = 6  # requests that are run one at a time; their pace says how many can be run at once
SECONDS = 40.0  # that those would take one at a time
FEWEST, MOST = 24, 400
SOME = 4  # requests at once, beside as many as there may be
LOAD = 0.7  # of what the machine served, that the run which checks the law brings
PLAIN = LlmTraffic.model_construct(  # of a model that nothing is sent to
    rate=1.0, prompt=Lengths(median=64, p95=256), output=Lengths(median=24, p95=64), shared_prefix=64
)
POOR = 0.1  # median error of a law beyond which it says little: it is measured again when a build is asked for
EVER = 10**18  # ns


def profile(
    model: LlmModel, out: Path, *, device: str = "cpu", force: bool = False, tell: Progress = quiet
) -> tuple[Measured, bool]:
    """The law of the model built in `out`, and whether it was there already.

    Measured again when the build, the weights or the machine changed, or what is there is POOR.

    Raises FitError, ConfigError or UsageError.
    """
    built = hashlib.sha256((out / STAMP).read_bytes()).hexdigest()[:16]
    path, weights = out / LAW, model.weights
    with locked(out):
        known = None if force else _known(path)
        if (
            known
            and known.law.fit.median <= POOR
            and (known.built, known.weights, known.machine) == (built, weights, describe())
        ):
            return known, True
        found = replace(
            _measured(model, out, device, tell),
            built=built,
            cores=len(os.sched_getaffinity(0)) if device == "cpu" else 0,
            host_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        scratch = out / f".{LAW}.{os.getpid()}"
        try:
            found.write(scratch)
            scratch.replace(path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise UsageError(f"{path}: {error.strerror}; the law is lost") from None
        return found, False


def _known(path: Path) -> Measured | None:
    with contextlib.suppress(LawError):
        return Measured.read(path)
    return None


def _measured(declared: LlmModel, out: Path, device: str, tell: Progress) -> Measured:
    model, options = ModelConfig.read(out), _options(declared, device)
    config = engine_config(model, options)
    tell("loading weights", 0, 0)
    executor = build_executor(out, config, options)
    steps: list[Step] = []
    requests = drawn(declared, config.max_model_len, model.vocab_size)
    alone = list(islice(requests, ALONE))
    pace = _run(alone, 1, executor, model, options, steps, tell, 0) / ALONE
    some = list(islice(requests, max(FEWEST, min(MOST, int(SECONDS / pace)))))
    _run(some, min(SOME, options.max_num_seqs), executor, model, options, steps, tell, 1)
    taken = _run(some, options.max_num_seqs, executor, model, options, steps, tell, 2)
    tell("measuring steps", 3, 4)
    work = Workload(tuple(some), frozenset())
    found = fitted(steps, work, LOAD * len(some) / taken, model, options, executor)
    step, _ = next(plans(config))
    return replace(found, cold=coldness(lambda: executor.execute(step)))


def _options(declared: LlmModel, device: str) -> ServiceOptions:
    """As the model would be served: what is pinned in the file, else the defaults."""
    names = ("max_num_seqs", "max_num_batched_tokens", "kv_cache_memory", "swap_space")
    pinned = {name: value for name in names if (value := getattr(declared, name)) is not None}
    options = ServiceOptions(weights=declared.weights, max_model_len=declared.max_model_len, device=device)
    if "max_num_seqs" in pinned:  # every running sequence must get its token
        pinned.setdefault("max_num_batched_tokens", max(options.max_num_batched_tokens, pinned["max_num_seqs"]))
    return replace(options, **pinned)


def _run(
    requests: list[Request],
    at_once: int,
    executor: TorchExecutor,
    model: ModelConfig,
    options: ServiceOptions,
    steps: list[Step],
    tell: Progress,
    done: int,
) -> float:
    """Seconds of all requests, which come together and of which so many run at once."""
    tell("measuring steps", done, 4)
    config = engine_config(model, replace(options, max_num_seqs=at_once))
    return bench.measure(Workload(tuple(requests), frozenset()), config, executor, None, steps).seconds


def drawn(declared: LlmModel, max_model_len: int, vocab_size: int) -> Iterator[Request]:
    """Requests as they come by the file, tokens at random; half of a tier's begin with its system prompt."""
    traffic, random = declared.traffic or {"plain": PLAIN}, Random(0)
    shared = {tier: _ids(random, shape.shared_prefix, vocab_size) for tier, shape in traffic.items()}
    for arrival in arrivals(traffic, EVER, 1.0, 0, max_model_len):
        yield _request(arrival, shared[arrival.tier], random, vocab_size)


def _request(arrival: Arrival, shared: tuple[int, ...], random: Random, vocab_size: int) -> Request:
    prompt = shared[: arrival.shared] + _ids(random, arrival.own, vocab_size)
    sampling = SamplingParams(max_tokens=arrival.output, temperature=0, ignore_eos=True, seed=0)
    return Request(f"{arrival.tier}-{arrival.number}", prompt, sampling)


def _ids(random: Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(random.randrange(vocab_size) for _ in range(count))
