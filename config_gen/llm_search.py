"""Ways to serve one LLM: sequences, token budget, KV pages; each tried through the scheduler on its device alone.

Must not know other models or cards; see planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

from config_gen import serving
from config_gen.arrivals import arrivals
from config_gen.facts import LlmFacts
from config_gen.llm_options import options
from config_gen.needs import PARTLY, in_steps
from config_gen.promises import load, margin
from config_gen.serving import Capacity, Decoding
from config_gen.spec import LlmModel, Spec
from decode.config import EngineConfig
from decode.executors.cost_model import Law
from decode.executors.gpu_cost import StepWork
from decode.options import ServiceOptions

SEQS = (8, 16, 32, 64, 128)
BUDGETS = (128, 256, 512, 1024)
FIRST_SEQS = 32
REACHES = (2, 4)  # times the rates with headroom
EFFORT = 0.34  # of a search's simulations, in requests, beside the last one
ROOM = 1.25  # times the pages that were in use at most: what a busier moment may need
MIB = 2**20
MINUTES, DRAWN = 10, 50_000  # of traffic, in which the longest request is looked for; requests at most
SWAP = "4GiB"  # of the host beside a card, for pages of requests that made room; on the CPU they are there already


class Scaled:
    """A law whose steps take `factor` times as long."""

    def __init__(self, law: Law, factor: float) -> None:
        self._law, self._factor = law, factor
        self.spread = law.spread

    def step(self, work: StepWork) -> float:
        return self._factor * self._law.step(work)


@dataclass(frozen=True)
class LlmCandidate:
    """One way to serve; `memory` in bytes of each device, pages and weights."""

    served: Decoding
    margin: float
    memory: int
    kv_memory: int
    parameters: Mapping[str, str]
    pages_peak: float
    reach: int = 0  # times the rates with headroom at which it still holds alone


class LlmSearch:
    """Everything that is fixed about one model; each of `devices` holds an engine. `room`: bytes free on each."""

    def __init__(
        self,
        spec: Spec,
        name: str,
        facts: LlmFacts,
        chance: str,
        devices: tuple[str, ...],
        cores: int,
        room: int,
        factor: float = 1.0,
        around: int = 0,
    ) -> None:
        model = spec.models[name]
        assert isinstance(model, LlmModel)
        self.model, self.facts = model, facts
        self._name, self._chance, self._devices, self._cores = name, chance, devices, cores
        self._options = options(spec, model)
        self._law: Law = Scaled(facts.law, factor) if factor != 1 else facts.law
        self._around = around
        self._room = room - facts.weights_memory
        self._scale = 1 + spec.headroom
        self._tried: dict[tuple[int, int, int, int], LlmCandidate] = {}

    def candidates(self) -> list[LlmCandidate]:
        """Ways to serve, best margin first; that one with few pages.

        First the token budget, with a common number of sequences; then how far beyond the rates that holds; then the
        number of sequences, there.
        """
        kv = self._most_memory()
        pinned = self.model.max_num_batched_tokens
        seqs = self.model.max_num_seqs or min(FIRST_SEQS, pinned or FIRST_SEQS)
        budgets = [pinned] if pinned else BUDGETS
        found = [self.tried(seqs, budget, kv) for budget in budgets if budget >= seqs] or [self.tried(seqs, seqs, kv)]
        best = max(found, key=_worth)
        budget = best.served.config.max_num_batched_tokens
        for reach in REACHES:
            if best.reach and (farther := self.tried(seqs, budget, kv, reach)).reach:
                best = farther
        found.append(best)
        if self.model.max_num_seqs is None:
            reach = max(1, best.reach)
            others = [other for other in SEQS if other != seqs and other <= (pinned or other)]
            found += [self.tried(other, max(budget, other), kv, reach) for other in others]
        ordered = sorted(found, key=_worth, reverse=True)
        return [self._shrunk(ordered[0]), *ordered[1:]]

    def tried(self, seqs: int, budget: int, kv_memory: int, reach: int = 1) -> LlmCandidate:
        """Simulated with its device for itself at `reach` times the rates with headroom."""
        key = (seqs, budget, kv_memory, reach)
        if key not in self._tried:
            served, models = self.served(seqs, budget, kv_memory), {self._name: self.model}
            devices = dict.fromkeys(self._devices, Capacity(self._capacity))
            sent = load(models, reach * self._scale, EFFORT)
            seen = serving.run([served], devices, sent)
            left = margin(models, seen, sent.duration)
            self._tried[key] = LlmCandidate(
                served,
                left,
                self.facts.weights_memory + kv_memory,
                kv_memory,
                self.parameters(seqs, budget, kv_memory),
                seen.pages[self._name],
                reach if left >= 0 else 0,
            )
        return self._tried[key]

    def served(self, seqs: int, budget: int, kv_memory: int) -> Decoding:
        config = self.config(seqs, budget, kv_memory)
        return Decoding(
            self._name, self.model, self._chance, self._devices, self._capacity, config, self._law, self._around
        )

    def config(self, seqs: int, budget: int, kv_memory: int) -> EngineConfig:
        """Limits of the engine, as `decode.assembly` makes them of the same parameters."""
        service = ServiceOptions.from_parameters(self.parameters(seqs, budget, kv_memory))
        page = service.page_size * self.facts.kv_bytes_per_token
        made = service.engine_config(kv_memory // page, self.facts.max_model_len)
        swap = service.swap_space or 0
        return replace(made, host_pages=swap // page, swap_page_time=self.facts.swap_page_time)

    def parameters(self, seqs: int, budget: int, kv_memory: int) -> dict[str, str]:
        """Of config.pbtxt; the size of the pool is set by another name on a card, see planner."""
        size = f"{kv_memory // MIB}MiB" if kv_memory % MIB == 0 else f"{kv_memory // 2**10}KiB"
        swap = {"swap_space": SWAP if self.facts.on_gpu else "0"}
        return (
            swap
            | self._options
            | {
                "max_num_seqs": str(seqs),
                "max_num_batched_tokens": str(budget),
                "kv_cache_memory": size,
            }
        )

    @property
    def least_memory(self) -> int:
        """Bytes of KV pages without which one request of the largest length does not run."""
        return (self.model.max_model_len + PARTLY) * self.facts.kv_bytes_per_token

    @property
    def _capacity(self) -> float:
        return 1.0 if self.facts.on_gpu else float(self._cores)

    def _most_memory(self) -> int:
        """Enough for every sequence that may run, no more than there is; or what the file pins."""
        if self.model.kv_cache_memory is not None:
            return self.model.kv_cache_memory
        seqs = self.model.max_num_seqs or max(SEQS)
        wanted = max(self.least_memory, seqs * self._typical() * self.facts.kv_bytes_per_token)
        return in_steps(min(max(wanted, self.least_memory), self._room), down=wanted > self._room)

    def _typical(self) -> int:
        """Tokens of a long request of this traffic: the 95th of a hundred, of each tier, the longest tier's."""
        found = (shape.shared_prefix + shape.prompt.p95 + shape.output.p95 for shape in self.model.traffic.values())
        return min(max(found, default=self.model.max_model_len), self.model.max_model_len)

    def _shrunk(self, best: LlmCandidate) -> LlmCandidate:
        """The same with as little KV memory as keeps what it keeps."""
        if self.model.kv_cache_memory is not None:
            return best
        config = best.served.config
        seqs, budget = config.max_num_seqs, config.max_num_batched_tokens
        small = in_steps(max(self.least_memory, int(best.kv_memory * best.pages_peak * ROOM)))
        while small < best.kv_memory:
            found = self.tried(seqs, budget, small)
            if found.margin >= min(best.margin, 0.0) and (found.margin >= 0 or found.margin >= best.margin):
                return found
            small = in_steps(2 * small)
        return best


def longest_request(spec: Spec, name: str) -> tuple[int, int]:
    """Tokens of the longest request that this traffic draws in ten minutes, or of DRAWN, and of how many."""
    model = spec.models[name]
    assert isinstance(model, LlmModel)
    drawn = islice(arrivals(model.traffic, MINUTES * 60 * 10**9, 1.0, 0, model.max_model_len), DRAWN)
    lengths = [one.shared + one.own + one.output for one in drawn]
    return max(lengths, default=0), len(lengths)


def _worth(one: LlmCandidate) -> tuple[int, float, int, int]:
    """Farthest reach, best margin to a hundredth there, of equals the fewest sequences and the smallest steps."""
    config = one.served.config
    return one.reach, round(one.margin, 2), -config.max_num_seqs, -config.max_num_batched_tokens
