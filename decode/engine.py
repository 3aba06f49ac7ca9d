"""The decode engine: inputs in, plans out, results in, events out. Pure: same calls, same answers.

Owns every accepted request until its one terminal event. Must not know clocks, threads, text or tensors; `now` is an
argument, in integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from decode import policy
from decode.config import EngineConfig, TierConfig
from decode.kv_cache import KVCache
from decode.plan import Cancel, Event, Finished, Input, Rejected, Started, StepPlan, StepResult, Submit, TokenOut
from decode.scheduler import Scheduler
from decode.sequence import Sequence
from decode.step_time import Executed
from decode.types import FinishReason, RejectReason, Request, Usage


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot. Pages `used` are held by leases, `cached` are published and free to take; counters only grow."""

    running: int
    waiting: dict[str, int]
    pages_total: int
    pages_used: int
    pages_cached: int
    preemptions: int
    swaps: int  # preemptions that moved pages to host memory
    service: dict[str, float]  # by tier, in weighted tokens
    prompt_tokens: int
    prefix_hit_tokens: int
    output_tokens: int
    steps: int


class Engine:
    """Continuous batching over a paged, prefix-shared KV cache.

    `measured`: steps that were executed before, from which it learns what a step takes.
    """

    def __init__(self, config: EngineConfig, measured: Executed = ()) -> None:
        self.config = config
        self.cache = KVCache(config.num_pages, config.page_size, config.prefix_cache, config.host_pages)
        self.scheduler = Scheduler(config, self.cache)
        for work, elapsed in measured:
            self.scheduler.times.learn(work, elapsed)
        self._tiers: dict[str, TierConfig] = {t.name: t for t in config.tiers}
        self._ranks = {t.name: 0 if config.policy == "fcfs" else rank for rank, t in enumerate(config.tiers)}
        self._eos = frozenset(config.eos_token_ids)
        self._sequences: dict[str, Sequence] = {}
        self._events: list[Event] = []
        self._number = 0
        self._steps = 0
        self._prompt_tokens = self._hit_tokens = self._output_tokens = 0

    @property
    def idle(self) -> bool:
        """Whether no request is accepted and unfinished."""
        return not self._sequences

    def apply(self, item: Input, now: int) -> None:
        """Take one input."""
        match item:
            case Submit(request):
                self._submit(request, now)
            case Cancel(request_id, reason):
                self._cancel(request_id, reason, now)

    def plan(self, now: int) -> StepPlan | None:
        """The next step, or None when nothing can be done until more arrives. Must be committed or failed next."""
        for sequence in self.scheduler.roster.waiting.expired(now):
            tier = sequence.tier
            waited = (now - sequence.arrival) / 1e9
            text = f"waited {waited:.3f} s in the queue of tier {tier.name}: retry later or raise its queue_timeout"
            self._drop_waiting(sequence, RejectReason.QUEUE_TIMEOUT, text, now)
        plan = self.scheduler.plan(self._steps, now)
        for sequence in self.scheduler.draft.started:
            self._prompt_tokens += sequence.prompt_len
            self._hit_tokens += sequence.cached
            self._events.append(Started(sequence.request.id, sequence.cached, now))
        if plan is not None:
            self._steps += 1
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: int) -> None:
        """Take the result of the plan made last."""
        self.scheduler.executed(result.elapsed)
        emit, logprobs = self._events.append, result.logprobs or (None,) * len(plan.chunks)
        for sequence, token, extra in zip(self.scheduler.draft.planned, result.tokens, logprobs, strict=True):
            if token is None:
                continue
            sequence.tokens.append(token)
            self._output_tokens += 1
            stop = token in sequence.stop_ids
            emit(TokenOut(sequence.request.id, token, sequence.output_len - 1, now, not stop, extra))
            if stop:
                self._finish(sequence, FinishReason.STOP, now)
            elif len(sequence.tokens) >= sequence.limit:
                self._finish(sequence, FinishReason.LENGTH, now)

    def fail(self, message: str, now: int) -> None:
        """The step in flight raised: every accepted request ends with the message, and no page's content is trusted."""
        for sequence in list(self._sequences.values()):
            self._finish(sequence, FinishReason.ERROR, now, message)
        self.cache.forget()

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def stats(self) -> Stats:
        return Stats(
            running=len(self.scheduler.roster.running),
            waiting={name: self.scheduler.waiting(name) for name in self._tiers},
            pages_total=self.config.num_pages,
            pages_used=self.config.num_pages - self.cache.available,
            pages_cached=self.cache.tree.unused,
            preemptions=self.scheduler.roster.preemptions,
            swaps=self.scheduler.roster.swaps,
            service=dict(self.scheduler.accounts.served),
            prompt_tokens=self._prompt_tokens,
            prefix_hit_tokens=self._hit_tokens,
            output_tokens=self._output_tokens,
            steps=self._steps,
        )

    def check(self) -> None:
        """Raise AssertionError unless every invariant of queues, leases and pages holds."""
        self.scheduler.roster.check()
        waiting = sum(self.scheduler.waiting(name) for name in self._tiers)
        assert waiting + len(self.scheduler.roster.running) == len(self._sequences), "a sequence is lost"

    def _submit(self, request: Request, now: int) -> None:
        problem = self._problem(request)
        if problem is not None:
            self._reject(request.id, *problem, now)
            return
        tier = self._tiers[request.tier]
        params = request.sampling
        limit = min(len(request.prompt) + params.max_tokens, self.config.max_model_len)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        sequence = Sequence(self._number, request, now, limit, stop_ids, tier, self._ranks[tier.name])
        self._number += 1
        self._make_room(tier, now)
        self._sequences[request.id] = sequence
        self.scheduler.add(sequence)

    def _make_room(self, tier: TierConfig, now: int) -> None:
        """In a full queue the place of one that is late goes to the next that comes."""
        late = self.scheduler.roster.waiting[tier.name].overdue()
        if late is not None and self._full(tier):
            waited = (now - late.arrival) / 1e9
            text = (
                f"queue of tier {tier.name} is full ({tier.max_queue}), and after {waited:.1f} s this one cannot keep "
                "its targets: retry later or raise max_queue"
            )
            self._drop_waiting(late, RejectReason.QUEUE_FULL, text, now)

    def _full(self, tier: TierConfig) -> bool:
        free = policy.free_slots(self.config, len(self.scheduler.roster.running))
        return tier.max_queue is not None and self.scheduler.waiting(tier.name) >= tier.max_queue + free

    def _problem(self, request: Request) -> tuple[RejectReason, str] | None:
        """Why this request cannot be taken, with the numbers and what to do."""
        config, invalid, length = self.config, RejectReason.INVALID, len(request.prompt)
        tier = self._tiers.get(request.tier)
        if tier is None:
            return invalid, f"tier: {request.tier[:60]!r} is not allowed; one of {', '.join(self._tiers)}"
        if request.id in self._sequences:
            return invalid, f"request id: {request.id!r} is in use by a request that has not ended"
        if length == 0:
            return invalid, "the prompt is empty; at least one token is needed"
        if config.vocab_size is not None and not 0 <= min(request.prompt) <= max(request.prompt) < config.vocab_size:
            return invalid, f"the prompt holds a token id outside 0 to {config.vocab_size - 1}"
        if length >= config.max_model_len:
            allowed = f"at most max_model_len - 1 = {config.max_model_len - 1}"
            return invalid, f"the prompt has {length} tokens; {allowed} are allowed"
        most = min(length + request.sampling.max_tokens, config.max_model_len) - 1  # the last token needs no KV
        if self.cache.pages_for(most) > config.num_pages:
            room = config.num_pages * config.page_size
            wish = f"prompt of {length} tokens plus max_tokens {request.sampling.max_tokens}"
            return invalid, f"{wish} needs {most} KV positions; the whole cache holds {room}: lower max_tokens"
        waiting, wait = self.scheduler.waiting(tier.name), self.scheduler.roster.waiting.predicted_wait(tier.name)
        later = "later" if wait is None else f"in about {wait / 1e9:.1f} s"
        if self._full(tier) and self.scheduler.roster.waiting[tier.name].overdue() is None:
            text = f"queue of tier {tier.name} is full ({tier.max_queue}): retry {later} or raise max_queue"
            return RejectReason.QUEUE_FULL, text
        if config.early_refusal and wait is not None and tier.queue_timeout is not None and wait > tier.queue_timeout:
            text = (
                f"{waiting} requests wait in the queue of tier {tier.name}, about {wait / 1e9:.1f} s, and its "
                f"queue_timeout is {tier.queue_timeout / 1e9:g} s: retry {later} or raise it"
            )
            return RejectReason.QUEUE_TIMEOUT, text
        return None

    def _cancel(self, request_id: str, reason: FinishReason, now: int) -> None:
        """End a request in whatever state it is; one that has ended already is nobody's mistake (messages cross)."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return
        if sequence.lease is None and sequence.preemptions == 0:
            self._drop_waiting(sequence, RejectReason.CANCELLED, "cancelled while it waited", now)
        else:
            self._finish(sequence, reason, now)

    def _drop_waiting(self, sequence: Sequence, reason: RejectReason, message: str, now: int) -> None:
        self.scheduler.roster.remove(sequence)
        del self._sequences[sequence.request.id]
        self._reject(sequence.request.id, reason, message, now)

    def _reject(self, request_id: str, reason: RejectReason, message: str, now: int) -> None:
        self._events.append(Rejected(request_id, reason, message, now))

    def _finish(self, sequence: Sequence, reason: FinishReason, now: int, message: str = "") -> None:
        self.scheduler.roster.remove(sequence)
        del self._sequences[sequence.request.id]
        usage = Usage(sequence.prompt_len, sequence.cached, sequence.output_len, sequence.preemptions)
        self._events.append(Finished(sequence.request.id, reason, usage, now, message))
