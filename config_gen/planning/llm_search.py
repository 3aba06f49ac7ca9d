"""Ways to serve one LLM: sequences, token budget, KV pages; each tried through the scheduler on its device alone.

Must not know other models or cards; see planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

from config_gen.facts import Correction, LlmFacts
from config_gen.planning.llm_options import options, size_text
from config_gen.planning.placing import Seat
from config_gen.planning.promises import load, margin
from config_gen.simulation import joint
from config_gen.simulation.serving import FRONT, HOST, MESSAGE, WAKING, Capacity, Decoding
from config_gen.sla.arrivals import arrivals, chance
from config_gen.sla.spec import LlmModel, Spec
from decode.config import EngineConfig
from decode.executors.cost_model import Law
from decode.executors.gpu_cost import StepWork
from decode.options import ServiceOptions

SEQS = (8, 16, 32, 64, 128)
BUDGETS = (128, 256, 512, 1024)
FIRST_SEQS = 32
REACHES = (2, 4)  # times the rates with headroom
EFFORT = 0.34  # of a search's simulations, in requests, beside the last one
LOST = 0.05  # of a target, that a smaller pool may cost
SHRUNK = 3  # ways that are told, each with the pool it needs
LOOKED_AT = 10_000  # requests
PAGE = 16  # tokens
STEP = 32 * 2**20  # the smallest pool is given in whole steps of this
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
    """Everything that is fixed about one model, an engine on each of the places of its seat.

    What it serves names the places as the seat does; see settling.on.
    """

    def __init__(self, spec: Spec, name: str, facts: LlmFacts, seat: Seat, fixed: Correction, cores: int) -> None:
        model = spec.models[name]
        assert isinstance(model, LlmModel)
        self.model, self.facts = model, facts
        self._name, self._chance, self._seat = name, chance(spec.models, name), seat
        self._cores = min(cores, facts.cores)  # that its steps use
        slower = facts.cores / self._cores if not facts.on_gpu else 1.0
        self._options = options(spec, model)
        self._law: Law = Scaled(facts.law, slower * fixed.factor) if slower * fixed.factor != 1 else facts.law
        self._host = float(cores)
        self._capacity = 1.0 if facts.on_gpu else self._host
        self._around = WAKING + fixed.around
        self._scale = 1 + spec.headroom
        self._tried: dict[tuple[int, int, int, int], LlmCandidate] = {}
        self._found: list[LlmCandidate] = []

    def candidates(self) -> list[LlmCandidate]:
        """Ways to serve, best first, each with as few pages as keep what it keeps.

        First the token budget, with a common number of sequences; then how far beyond the rates that holds; then the
        number of sequences, there.
        """
        if not self._found:
            kv, pinned = self._most_memory(), self.model.max_num_batched_tokens
            seqs = self.model.max_num_seqs or min(FIRST_SEQS, pinned or FIRST_SEQS)
            budgets = (pinned,) if pinned else [budget for budget in BUDGETS if budget >= seqs] or [seqs]
            found = [self.tried(seqs, budget, kv) for budget in budgets]
            best = max(found, key=_worth)
            budget = best.served.config.max_num_batched_tokens
            for reach in REACHES:
                if best.reach and (farther := self.tried(seqs, budget, kv, reach)).reach:
                    best = farther
            found.append(best)
            if self.model.max_num_seqs is None:
                others = [other for other in SEQS if other != seqs and (pinned is None or other <= pinned)]
                found += [self.tried(other, max(budget, other), kv, max(1, best.reach)) for other in others]
            ordered = sorted(found, key=_worth, reverse=True)[:SHRUNK]
            self._found = [self._shrunk(one) for one in ordered]
        return self._found

    def tried(self, seqs: int, budget: int, kv_memory: int, reach: int = 1) -> LlmCandidate:
        """Simulated with its device for itself at `reach` times the rates with headroom."""
        key = (seqs, budget, kv_memory, reach)
        if key not in self._tried:
            served, models = self.served(seqs, budget, kv_memory), {self._name: self.model}
            devices = {HOST: Capacity(self._host)} | dict.fromkeys(self._seat.places, Capacity(self._capacity))
            sent = load(models, reach * self._scale, EFFORT)
            seen = joint.run([served], devices, sent)
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
        """This way, on the places of its seat."""
        config, width = self.config(seqs, budget, kv_memory), 1.0 if self.facts.on_gpu else float(self._cores)
        return Decoding(
            self._name,
            self.model,
            self._chance,
            self._seat.places,
            width,
            config,
            self._law,
            self._around,
            FRONT,
            MESSAGE,
            self.facts.cold,
        )

    def config(self, seqs: int, budget: int, kv_memory: int) -> EngineConfig:
        """Limits of the engine, as `decode.assembly` makes them of the same parameters."""
        service = ServiceOptions.from_parameters(self.parameters(seqs, budget, kv_memory))
        page = service.page_size * self.facts.kv_bytes_per_token
        made = service.engine_config(kv_memory // page, self.facts.max_model_len)
        swap = service.swap_space or 0
        return replace(made, host_pages=swap // page, swap_page_time=self.facts.swap_page_time)

    def parameters(self, seqs: int, budget: int, kv_memory: int) -> dict[str, str]:
        """Of config.pbtxt."""
        place = {"device": "cuda", "swap_space": SWAP} if self.facts.on_gpu else {"device": "cpu", "swap_space": "0"}
        if not self.facts.on_gpu and self._cores < self.facts.cores:
            place["threads"] = str(self._cores)
        return (
            place
            | self._options
            | {
                "max_num_seqs": str(seqs),
                "max_num_batched_tokens": str(budget),
                "kv_cache_memory": size_text(kv_memory),
            }
        )

    @property
    def least_memory(self) -> int:
        """Bytes of KV pages without which one request of the largest length does not run."""
        return (self.model.max_model_len + PAGE) * self.facts.kv_bytes_per_token

    def _most_memory(self) -> int:
        """Enough for every sequence that may run, no more than there is; or what the file pins."""
        if self.model.kv_cache_memory is not None:
            return self.model.kv_cache_memory
        seqs = self.model.max_num_seqs or max(SEQS)
        wanted = max(self.least_memory, seqs * self._typical() * self.facts.kv_bytes_per_token)
        room = self._seat.room - self.facts.weights_memory
        ladder = [self._least()]
        while ladder[-1] < wanted and 2 * ladder[-1] <= room:
            ladder.append(2 * ladder[-1])
        return ladder[-1]

    def _least(self) -> int:
        """The lowest rung of the sizes of a pool that are tried, each twice the one before: few, so that a little more
        load or a little looser target seldom moves a plan."""
        return -(-self.least_memory // STEP) * STEP

    def _typical(self) -> int:
        """Tokens of a long request of this traffic: the 95th of a hundred, of each tier, the longest tier's."""
        longest = [shape.shared_prefix + shape.prompt.p95 + shape.output.p95 for shape in self.model.traffic.values()]
        return min(max(longest, default=0), self.model.max_model_len)

    def _shrunk(self, best: LlmCandidate) -> LlmCandidate:
        """The same with the smallest pool that leaves every target kept, where one is kept with the largest."""
        if self.model.kv_cache_memory is not None:
            return best
        config = best.served.config
        seqs, budget, reach = config.max_num_seqs, config.max_num_batched_tokens, max(1, best.reach)
        small = self._least()
        while small < best.kv_memory:
            if small >= best.kv_memory * best.pages_peak:
                found = self.tried(seqs, budget, small, reach)
                if (found.margin >= 0) == (best.margin >= 0) and found.margin >= best.margin - LOST:
                    return found
            small *= 2
        return best


def longest_request(spec: Spec, name: str) -> int:
    """Tokens of the longest of the first LOOKED_AT requests of this traffic; 0 without any."""
    model = spec.models[name]
    assert isinstance(model, LlmModel)
    if not model.traffic:
        return 0
    drawn = arrivals(model.traffic, 10**18, 1.0, 0, model.max_model_len, chance(spec.models, name))
    return max(one.shared + one.own + one.output for one in islice(drawn, LOOKED_AT))


def _worth(one: LlmCandidate) -> tuple[int, float, int, int]:
    """Farthest reach, best margin to a hundredth there, of equals the fewest sequences and the smallest steps."""
    config = one.served.config
    return one.reach, round(one.margin, 2), -config.max_num_seqs, -config.max_num_batched_tokens
