"""Logits to tokens: penalties, bans, temperature, truncation and the draw, for rows with different settings at once.

A row's result depends on its logits and its Draw only: nothing here reduces over more than one row, and randomness is a
hash of (seed, position) instead of a generator's state. Must not know sequences, pages, plans or models.

Order: repetition penalty, frequency and presence penalty, bans; then (logprobs are taken here) temperature, top-k,
top-p over what top-k left, min-p. That is the order of Hugging Face's `generate`; vLLM differs in min-p before top-k.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf, log

import torch
from torch import Tensor

from decode import nvtx
from decode.plan import Draw, Logprobs
from decode.types import SamplingParams

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
CPU_CANDIDATES = 1024  # sorting a whole vocabulary costs milliseconds a row on a CPU; nuclei are rarely wider


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits that depends on its arguments only.

    SplitMix64 (Steele, Lea, Flood 2014) read at counter `position` of the stream that the hashed seed starts.
    """
    return (_mix(_mix(seed) + (position + 1) * GOLDEN) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Sampler:
    """Draws one token per row of logits."""

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._range = nvtx.ranges(device)
        self._width = min(CPU_CANDIDATES, vocab_size) if self._device.type == "cpu" else vocab_size
        # Kept from call to call: on a CPU, fresh pages cost several times the arithmetic done in them.
        self._work = torch.empty(2, 0, vocab_size, device=self._device)
        self._cdf = torch.empty(0, vocab_size, dtype=torch.float64, device=self._device)

    @torch.inference_mode()  # logits of a forward in that mode can be overwritten in that mode only
    def draw(self, logits: Tensor, draws: Sequence[Draw]) -> tuple[tuple[int, ...], tuple[Logprobs | None, ...]]:
        """Draw one token per row of `logits` ([n, vocab_size] float32, overwritten) as `draws[row]` says.

        Returns the tokens, and log-probabilities by row, empty when no row asked for them. Greedy rows (temperature 0)
        take the lowest id among the best. Raises FloatingPointError naming the first row with a NaN or +inf, or with
        no token left to draw.
        """
        if not draws:
            return (), ()
        self._penalize(logits, draws)
        self._ban(logits, draws)
        best, tokens = logits.max(dim=-1)  # NaN wins a maximum; ties go to the lowest id
        rows = [row for row, d in enumerate(draws) if d.params.temperature > 0]
        if rows:
            tokens[rows] = self._sample(_rows(logits, rows), best[rows], [draws[row] for row in rows])
        with self._range("copy back"):  # waits for all that was launched before
            drawn, peaks = torch.stack((tokens.double(), best.double())).tolist()
        _check(peaks)
        return tuple(int(token) for token in drawn), self._logprobs(logits, tokens, draws)

    def _penalize(self, logits: Tensor, draws: Sequence[Draw]) -> None:
        """Repetition as in CTRL (Keskar et al. 2019) over prompt and output, the others as OpenAI define them."""
        rows: list[int] = []
        ids: list[int] = []
        factors: list[float] = []
        offsets: list[float] = []
        for row, draw in enumerate(draws):
            params = draw.params
            if not params.penalized:
                continue
            counts = dict(Counter(draw.output))
            if params.repetition_penalty != 1:
                counts = dict.fromkeys(draw.prompt, 0) | counts
            rows += [row] * len(counts)
            ids += counts
            factors += [params.repetition_penalty] * len(counts)
            offsets += [params.frequency_penalty * n + params.presence_penalty * (n > 0) for n in counts.values()]
        if rows:
            where = self._indices(rows, ids)
            factor, offset = self._floats([factors, offsets]).float()
            seen = logits[where]
            logits[where] = torch.where(seen < 0, seen * factor, seen / factor) - offset

    def _ban(self, logits: Tensor, draws: Sequence[Draw]) -> None:
        vocab = logits.shape[1]  # a client may name stop ids that no token has
        banned = [(row, token) for row, draw in enumerate(draws) for token in draw.banned if token < vocab]
        if banned:
            rows, ids = zip(*banned, strict=True)
            logits[self._indices(rows, ids)] = -inf

    def _sample(self, logits: Tensor, best: Tensor, draws: Sequence[Draw]) -> Tensor:
        """Inverse of the cumulated probabilities in the order of ids: one token per row, int64."""
        params = [draw.params for draw in draws]
        # Bounded so that float32 neither divides by 0 nor turns a ban (-inf) into NaN; 1e-30 is greedy, 1e30 uniform.
        temperatures = [min(max(p.temperature, 1e-30), 1e30) for p in params]
        points = [uniform(_seed(p), draw.position) for p, draw in zip(params, draws, strict=True)]
        temperature, point = self._floats([temperatures, points]).unsqueeze(-1)
        self._reserve(len(draws))
        scaled, probs = self._work[:, : len(draws)]
        torch.sub(logits, best.unsqueeze(-1), out=scaled).div_(temperature.float())  # the best is 0: no overflow
        torch.softmax(scaled, dim=-1, out=probs)
        if any(map(_truncated, params)) or any(p.min_p for p in params):
            probs.masked_fill_(scaled < self._edge(scaled, probs, params), 0)
        cdf = torch.cumsum(probs, dim=-1, dtype=torch.float64, out=self._cdf[: len(draws)])
        # point < 1 and rounding to nearest keep point * total < total, so the first id above it has a probability.
        return torch.searchsorted(cdf, point * cdf[:, -1:], right=True).squeeze(-1)

    def _reserve(self, rows: int) -> None:
        if len(self._cdf) < rows:
            self._work = self._work.new_empty(2, rows, self._work.shape[2])
            self._cdf = self._cdf.new_empty(rows, self._cdf.shape[1])

    def _edge(self, scaled: Tensor, probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
        """The lowest scaled logit that survives truncation, [m, 1]. Ties with it survive too.

        min-p compares probabilities with the best one's; as the best scaled logit is 0 that is a bound of log(min_p).
        """
        edge = self._floats([[log(p.min_p) if p.min_p else -inf for p in params]]).float().T
        pending = [row for row, p in enumerate(params) if _truncated(p)]
        for width in dict.fromkeys((self._width, scaled.shape[1])):  # on a GPU both are the whole vocabulary
            if not pending:
                break
            some = [params[row] for row in pending]
            found, whole = self._nucleus(_rows(scaled, pending), _rows(probs, pending), some, width)
            edge[pending] = torch.maximum(edge[pending], torch.where(whole, found, -inf))
            if width < scaled.shape[1]:
                pending = [row for row, (ok,) in zip(pending, whole.tolist(), strict=True) if not ok]
        return edge

    def _nucleus(
        self, scaled: Tensor, probs: Tensor, params: Sequence[SamplingParams], width: int
    ) -> tuple[Tensor, Tensor]:
        """Lowest survivor of top-k and top-p among the `width` best, and whether these were enough; [m, 1] both.

        top-p keeps the best tokens until their mass first reaches top_p of what top-k left: at least one.
        """
        vocab = scaled.shape[1]
        values, index = scaled.sort(dim=-1, descending=True) if width == vocab else scaled.topk(width)
        mass = probs.gather(1, index).cumsum(dim=-1, dtype=torch.float64)
        limited = [0 < p.top_k < vocab for p in params]
        kth = [min(p.top_k, width) - 1 if few else width - 1 for p, few in zip(params, limited, strict=True)]
        is_limited, last = self._integers([list(map(int, limited)), kth]).unsqueeze(-1)
        last = (values >= values.gather(1, last)).sum(dim=-1, keepdim=True) - 1  # ties with the k-th stay
        last = last.clamp(min=0)  # rows of NaN have none; the draw is refused when they are all known
        total = torch.where(is_limited > 0, mass.gather(1, last), 1.0)
        share = self._floats([[p.top_p if p.top_p < 1 else inf for p in params]]).T
        reached = (mass < share * total).sum(dim=-1, keepdim=True)
        whole = torch.where(is_limited > 0, last < width - 1, reached < width) | (width == vocab)
        return values.gather(1, torch.minimum(reached, last)), whole

    def _logprobs(self, logits: Tensor, tokens: Tensor, draws: Sequence[Draw]) -> tuple[Logprobs | None, ...]:
        """Best first, ties by lower id: a repeated maximum is exact about ties, where topk is not."""
        asked = {row: d.params.logprobs for row, d in enumerate(draws) if d.params.logprobs is not None}
        if not asked:
            return ()
        rows = list(asked)
        left = logits[rows].log_softmax(dim=-1)
        columns = [left.gather(1, tokens[rows].unsqueeze(-1)).double()]
        for _ in range(min(max(asked.values()), logits.shape[1])):
            value, token = left.max(dim=-1, keepdim=True)
            columns += [token.double(), value.double()]
            left.scatter_(1, token, -inf)
        found: list[Logprobs | None] = [None] * len(draws)
        for row, (own, *rest) in zip(rows, torch.cat(columns, dim=1).tolist(), strict=True):
            ranked = [(int(token), value) for token, value in zip(rest[::2], rest[1::2], strict=True)]
            found[row] = Logprobs(own, tuple(pair for pair in ranked[: asked[row]] if pair[1] > -inf))
        return tuple(found)

    def _floats(self, values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self._device, non_blocking=True)

    def _integers(self, values: list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self._device, non_blocking=True)

    def _indices(self, rows: Iterable[int], ids: Iterable[int]) -> tuple[Tensor, ...]:
        return self._integers([list(rows), list(ids)]).unbind()


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    return values if len(rows) == len(values) else values[rows]


def _truncated(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1


def _seed(params: SamplingParams) -> int:
    if params.seed is None:
        raise ValueError("seed: None is not allowed when tokens are drawn; whoever takes requests must set it")
    return params.seed


def _check(peaks: Sequence[float]) -> None:
    """A row's maximum after penalties and bans says whether anything can be drawn from it."""
    for row, peak in enumerate(peaks):
        if peak == -inf:
            raise FloatingPointError(f"row {row}: no token is left to draw, every one is banned or -inf")
        if not peak < inf:
            raise FloatingPointError(f"row {row}: the logits hold {peak}, only finite ones and -inf can be drawn from")
