"""The step being built: its chunks and copies, what it computes, and which tier is charged for it.

Must not know who goes next, nor where pages come from.
"""

from __future__ import annotations

from collections.abc import Iterable

from decode.accounts import Accounts
from decode.config import EngineConfig
from decode.kv_cache import KVCache
from decode.plan import Chunk, Copy, Draw, StepPlan, Swap
from decode.sequence import Sequence
from decode.step_time import Work

UnderWay = dict[str, list[Sequence]]  # prompts of running sequences that go on, by tier, the next one last


class Draft:
    """First `decode` for each decoding sequence, then once `decodes_done`, then `prompt` for each prompt.

    `planned` is parallel to `chunks`. Pages that a chunk fills are published at once: others may read them within this
    very step.
    """

    def __init__(self, config: EngineConfig, cache: KVCache, accounts: Accounts, step: int, now: int) -> None:
        self.step = step
        self.now = now
        self.chunks: list[Chunk] = []
        self.planned: list[Sequence] = []
        self.started: list[Sequence] = []  # admitted for the first time
        self.preempted: list[tuple[Sequence, bool]] = []  # lost their pages to others; whether these were saved
        self.copies: list[Copy | Swap] = []
        self.work = Work(0, 0, 0, 0)
        self._config = config
        self._cache = cache
        self._accounts = accounts
        self._tokens = {tier.name: 0 for tier in config.tiers}

    def plan(self) -> StepPlan | None:
        """None when there is nothing to do."""
        return StepPlan(self.step, tuple(self.chunks), tuple(self.copies)) if self.chunks else None

    def decode(self, sequence: Sequence) -> None:
        """Plan the last token of a sequence, whose lease holds its page."""
        tokens, lease = sequence.tokens, sequence.lease
        assert lease is not None
        end = len(tokens)
        sequence.computed = end
        if lease.publishing and end // self._cache.page_size > len(lease.nodes):
            self._cache.publish(lease, tokens, end, self.step)
        self.planned.append(sequence)
        self.chunks.append(Chunk(sequence.number, (tokens[-1],), end - 1, lease.table, _draw(sequence)))

    def decodes_done(self) -> None:
        """Charge tiers for all that is planned so far; one look at each, there may be thousands."""
        context, charged = 0, dict.fromkeys(self._tokens, 0)
        for sequence in self.planned:
            end = sequence.computed
            context += end
            self._tokens[sequence.tier.name] += 1
            if end > sequence.charged:
                sequence.charged = end
                charged[sequence.tier.name] += 1
        for tier, count in charged.items():
            if count:
                self._accounts.charge(tier, count * self._config.decode_cost)
        self.work = Work(0, len(self.planned), context, 0)

    def prompt(self, sequence: Sequence, size: int) -> None:
        """Plan the next `size` tokens of a running sequence."""
        tokens, lease, start = sequence.tokens, sequence.lease, sequence.computed
        assert lease is not None
        end = start + size
        self._charge_prompt(sequence, start, end)
        self._tokens[sequence.tier.name] += size
        self.work = self.work._replace(
            prefill_tokens=self.work.prefill_tokens + size,
            prefill_context=self.work.prefill_context + size * (start + end) // 2,
        )
        sequence.computed = end
        if lease.publishing and end // self._cache.page_size > len(lease.nodes):
            self._cache.publish(lease, tokens, end, self.step)
        draw = _draw(sequence) if end == len(tokens) else None
        self.planned.append(sequence)
        self.chunks.append(Chunk(sequence.number, tuple(tokens[start:end]), start, lease.table, draw))

    def shares(self) -> dict[str, float]:
        """How much of what a step can hold each tier has in this one: of its slots or of its tokens."""
        slots = dict.fromkeys(self._tokens, 0)
        for sequence in self.planned:
            slots[sequence.tier.name] += 1
        seqs, tokens = self._config.max_num_seqs, self._config.max_num_batched_tokens
        return {tier: max(slots[tier] / seqs, self._tokens[tier] / tokens) for tier in slots}

    def under_way(self, running: Iterable[Sequence]) -> UnderWay:
        """By tier, those of `running` not in this step with more than a token to compute, first ones last."""
        found: UnderWay = {}
        done = set(map(id, self.planned))
        for sequence in running:
            if sequence.remaining > 1 and id(sequence) not in done:
                found.setdefault(sequence.tier.name, []).append(sequence)
        for line in found.values():
            line.reverse()
        return found

    def _charge_prompt(self, sequence: Sequence, start: int, end: int) -> None:
        """Charge the tier for positions [start, end), as far as it has not paid for them yet."""
        first, prompt = max(start, sequence.charged), sequence.prompt_len
        prefill, decode = max(0, min(end, prompt) - first), max(0, end - max(first, prompt))
        sequence.charged = max(sequence.charged, end)
        cost = prefill * self._config.prefill_cost + decode * self._config.decode_cost
        self._accounts.charge(sequence.tier.name, cost)


def _draw(sequence: Sequence) -> Draw:
    params, tokens, prompt_len = sequence.request.sampling, sequence.tokens, sequence.prompt_len
    if sequence.plain:
        return Draw(params, len(tokens))
    position = len(tokens)
    banned = tuple(sorted(sequence.stop_ids)) if position - prompt_len < params.min_tokens else ()
    if params.penalized:
        return Draw(params, position, banned, tuple(tokens[:prompt_len]), tuple(tokens[prompt_len:]))
    return Draw(params, position, banned)
