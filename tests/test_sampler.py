"""The sampler against a brute-force oracle in float64, against transformers' logits processors, and at its edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from decode.plan import Draw
from decode.sampler import CPU_CANDIDATES, Sampler, uniform
from decode.types import SamplingParams

GREEDY = SamplingParams(temperature=0)
NOISE = 1e-5  # how far float32 may move a probability or a bound


def draw(logits: list[list[float]] | torch.Tensor, *draws: Draw) -> tuple[int, ...]:
    rows = torch.as_tensor(logits, dtype=torch.float32).clone()
    return Sampler(rows.shape[1], "cpu").draw(rows, draws)[0]


def seen_often(logits: torch.Tensor, params: SamplingParams, times: int = 400) -> set[int]:
    """Ids drawn from one row of logits at many positions."""
    rows = logits.expand(times, -1).clone()
    return set(Sampler(len(logits), "cpu").draw(rows, [Draw(params, p) for p in range(times)])[0])


# The oracle: one row, plain loops, double precision, written from the definitions.


def penalized(row: list[float], draw: Draw) -> list[float]:
    params, scores = draw.params, list(row)
    for token in range(len(row)):
        if token in draw.prompt or token in draw.output:
            factor = params.repetition_penalty
            scores[token] = scores[token] * factor if scores[token] < 0 else scores[token] / factor
        scores[token] -= params.frequency_penalty * draw.output.count(token)
        scores[token] -= params.presence_penalty * (token in draw.output)
        if token in draw.banned:
            scores[token] = -math.inf
    return scores


def softmax(scores: list[float]) -> list[float]:
    best = max(scores)
    weights = [math.exp(s - best) for s in scores]
    return [w / sum(weights) for w in weights]


def survivors(scores: list[float], params: SamplingParams) -> list[float]:
    """Probabilities after truncation, not yet renormalised; `scores` are divided by the temperature already."""
    order = sorted(range(len(scores)), key=lambda t: -scores[t])
    if params.top_k > 0:
        bound = scores[order[min(params.top_k, len(order)) - 1]]
        scores = [s if s >= bound else -math.inf for s in scores]
    probs = softmax(scores)
    if params.top_p < 1:
        mass = 0.0
        for token in order:
            mass += probs[token]
            bound = scores[token]
            if mass >= params.top_p:
                break
        probs = [p if s >= bound else 0.0 for p, s in zip(probs, scores, strict=True)]
    return [p if p >= params.min_p * max(probs) else 0.0 for p in probs]


def acceptable(row: list[float], draw: Draw) -> set[int]:
    """The tokens the definitions allow, when bounds and the random point may move by float32 noise."""
    scores = penalized(row, draw)
    if draw.params.temperature == 0:
        near = max(scores) - 1e-6 * (1 + abs(max(scores)))
        return {t for t, s in enumerate(scores) if s >= near}
    scaled = [(s - max(scores)) / draw.params.temperature for s in scores]
    found = set()
    for tilt in (-NOISE, 0.0, NOISE):
        for point_tilt in (-NOISE, 0.0, NOISE):
            params = replace(
                draw.params,
                top_p=min(max(draw.params.top_p + tilt, 1e-12), 1) if draw.params.top_p < 1 else 1.0,
                min_p=min(max(draw.params.min_p * (1 + tilt), 0), 1),
            )
            probs = np.array(survivors(scaled, params))
            point = min(max(uniform(draw.params.seed, draw.position) + point_tilt, 0), 1 - 1e-12)
            found.add(int(np.searchsorted(np.cumsum(probs), point * probs.sum(), side="right")))
    return found


@st.composite
def rows_and_draws(pick: st.DrawFn) -> tuple[list[list[float]], list[Draw]]:
    vocab = pick(st.integers(1, 24))
    token = st.integers(0, vocab - 1)
    # A coarse lattice makes ties; the fine one makes none.
    score = pick(st.sampled_from([st.integers(-6, 6).map(lambda n: n / 2), st.floats(-12, 12, width=32)]))
    rows, draws = [], []
    for _ in range(pick(st.integers(1, 5))):
        params = SamplingParams(
            temperature=pick(st.sampled_from([0, 0.3, 1.0, 2.5])),
            top_k=pick(st.sampled_from([-1, 0, 1, 3, 1000])),
            top_p=pick(st.sampled_from([1.0, 0.9, 0.37, 1e-9])),
            min_p=pick(st.sampled_from([0.0, 0.05, 0.6])),
            repetition_penalty=pick(st.sampled_from([1.0, 1.3, 0.7])),
            presence_penalty=pick(st.sampled_from([0.0, 0.5, -1.5])),
            frequency_penalty=pick(st.sampled_from([0.0, 0.25, -0.5])),
            seed=pick(st.integers(0, 2**63 - 1)),
        )
        text = st.lists(token, max_size=8).map(tuple)
        banned = tuple(pick(st.sets(token, max_size=vocab - 1)))
        rows.append(pick(st.lists(score, min_size=vocab, max_size=vocab)))
        draws.append(Draw(params, pick(st.integers(0, 4096)), banned, pick(text), pick(text)))
    return rows, draws


@given(rows_and_draws())
@settings(max_examples=250, deadline=None)
def test_every_row_is_drawn_as_the_definitions_say(case: tuple[list[list[float]], list[Draw]]) -> None:
    rows, draws = case
    rows = [[float(np.float32(s)) for s in row] for row in rows]
    for token, row, asked in zip(draw(rows, *draws), rows, draws, strict=True):
        assert token in acceptable(row, asked), asked


@pytest.mark.parametrize("vocab", [50, 3000])  # narrower and wider than what the CPU path sorts at first
@pytest.mark.parametrize("spread", [0.02, 1.0, 6.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=7),
        SamplingParams(top_k=2000),
        SamplingParams(top_p=0.8),
        SamplingParams(top_p=0.999),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=0.6, top_k=40, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=1.7, top_k=1500, top_p=0.95),
    ],
)
def test_survivors_are_those_of_transformers(vocab: int, spread: float, params: SamplingParams) -> None:
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    expected = TemperatureLogitsWarper(params.temperature)(None, logits)
    if params.top_k > 0:
        expected = TopKLogitsWarper(params.top_k)(None, expected)
    if params.top_p < 1:
        expected = TopPLogitsWarper(params.top_p)(None, expected)
    if params.min_p > 0:
        expected = MinPLogitsWarper(params.min_p)(None, expected)
    scaled = (logits - logits.max()) / params.temperature
    probs = scaled.softmax(-1)
    edge = Sampler(vocab, "cpu")._edge(scaled, probs, [params])
    differ = (expected > -torch.inf) ^ (scaled >= edge)
    # Both cumulate thousands of float32 numbers, in opposite directions: the edge may move by that noise, no further.
    assert probs[differ].sum() <= NOISE
    if vocab == 50:
        assert not differ.any()


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(3)) * 4
    prompts = torch.randint(0, 40, (6, 30), generator=torch.Generator().manual_seed(4))
    ours = logits.clone()
    params = replace(GREEDY, repetition_penalty=1.4)
    draws = [Draw(params, 30, (), tuple(p[:20].tolist()), tuple(p[20:].tolist())) for p in prompts]
    tokens, _ = Sampler(40, "cpu").draw(ours, draws)
    theirs = RepetitionPenaltyLogitsProcessor(1.4)(prompts, logits)
    assert torch.equal(ours, theirs)
    assert tokens == tuple(theirs.argmax(-1).tolist())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=11),
        SamplingParams(seed=12, temperature=0.7, top_k=12),
        SamplingParams(seed=13, temperature=1.4, top_p=0.9),
        SamplingParams(seed=14, min_p=0.08),
    ],
)
def test_frequencies_over_many_positions_fit_the_distribution(params: SamplingParams) -> None:
    vocab, times = 30, 20_000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(5)) * 1.5
    tokens, _ = Sampler(vocab, "cpu").draw(logits.expand(times, -1).clone(), [Draw(params, p) for p in range(times)])
    probs = np.array(survivors([s / params.temperature for s in logits.double().tolist()], params))
    expected = probs / probs.sum() * times
    counts = np.bincount(tokens, minlength=vocab)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    chi_square = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # mean + 4 sigma; deterministic, so it cannot flicker


def test_uniform_points_are_even_over_positions_and_over_seeds() -> None:
    for points in (
        [uniform(7, p) for p in range(20_000)],
        [uniform(s, 7) for s in range(20_000)],
        [uniform(2**63 - 1 - s, s) for s in range(20_000)],
    ):
        counts, _ = np.histogram(points, bins=100, range=(0, 1))
        assert ((counts - 200) ** 2 / 200).sum() < 99 + 4 * math.sqrt(2 * 99)
        assert min(points) >= 0 and max(points) < 1
        assert abs(np.corrcoef(points[:-1], points[1:])[0, 1]) < 0.03


def test_a_row_does_not_depend_on_its_batch_mates() -> None:
    vocab, n = 5003, 32  # odd, so that rows start at every alignment
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(n, vocab, generator=generator) * torch.linspace(0.01, 8, n).unsqueeze(1)
    draws = []
    for row in range(n):
        params = SamplingParams(
            temperature=[0, 0.5, 1.0, 1.8][row % 4],
            top_k=[0, 20, 2000][row % 3],
            top_p=[1.0, 0.9, 0.5, 0.99, 0.2][row % 5],
            min_p=[0.0, 0.01][row // 2 % 2],
            repetition_penalty=[1.0, 1.2][row // 3 % 2],
            logprobs=[None, 5][row // 5 % 2],
            seed=row,
        )
        prompt = tuple(torch.randint(0, vocab, (50,), generator=generator).tolist())
        draws.append(Draw(params, 100 + row, (row, row + 1), prompt, prompt[:9]))
    sampler = Sampler(vocab, "cpu")
    tokens, logprobs = sampler.draw(logits.clone(), draws)
    for size in (1, 3, 8):
        for start in range(0, n, size):
            part = slice(start, start + size)
            alone, alone_logprobs = sampler.draw(logits[part].clone(), draws[part])
            assert alone == tokens[part]
            assert not alone_logprobs or alone_logprobs == logprobs[part]  # equal floats: bitwise


def test_the_draw_depends_on_seed_and_position_only() -> None:
    logits = torch.zeros(1, 1000)
    first = draw(logits, Draw(SamplingParams(seed=1), 5))
    assert first == draw(logits, Draw(SamplingParams(seed=1), 5))
    others = [draw(logits, Draw(SamplingParams(seed=s), p)) for s, p in ((1, 6), (2, 5), (5, 1))]
    assert first not in others


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(4, 49152)
    logits[0, [40_000, 17, 900]] = 2.0
    logits[1, [49_151, 49_150]] = 2.0
    logits[3] = -torch.inf
    logits[3, [3, 2]] = -7.0
    assert draw(logits, *[Draw(GREEDY, 1)] * 4) == (17, 49_150, 0, 2)


def test_greedy_ignores_truncation_and_needs_no_seed() -> None:
    assert draw([[0.0, 1.0, 3.0]], Draw(replace(GREEDY, top_k=1, top_p=0.1, min_p=1.0), 3)) == (2,)


def test_top_k_keeps_ties_with_the_kth_and_tolerates_more_than_the_vocabulary() -> None:
    logits = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0])
    assert seen_often(logits, SamplingParams(seed=1, top_k=2)) == {0, 2, 3}
    assert seen_often(logits, SamplingParams(seed=1, top_k=1)) == {0}
    assert seen_often(logits, SamplingParams(seed=1, top_k=99)) == {0, 1, 2, 3, 4}


def test_more_ties_than_the_cpu_path_sorts_at_first_all_survive() -> None:
    vocab = 3 * CPU_CANDIDATES
    logits = torch.zeros(vocab)
    logits[:10] = -1.0
    drawn = seen_often(logits, SamplingParams(seed=1, top_k=5), times=500)
    assert min(drawn) >= 10 and max(drawn) > 2 * CPU_CANDIDATES


def test_top_p_keeps_the_token_that_reaches_the_mass_and_its_ties() -> None:
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()
    assert seen_often(logits, SamplingParams(seed=2, top_p=0.45)) == {0}
    assert seen_often(logits, SamplingParams(seed=2, top_p=0.6)) == {0, 1, 2}
    assert seen_often(logits, SamplingParams(seed=2, top_p=0.95)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "params", [SamplingParams(seed=3, top_p=1e-12), SamplingParams(seed=3, min_p=1.0), SamplingParams(seed=3, top_k=1)]
)
def test_the_tightest_truncation_leaves_the_best_token(params: SamplingParams) -> None:
    assert seen_often(torch.tensor([0.0, 0.3, 5.0, 4.99]), params) == {2}


def test_top_p_is_taken_of_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.2, 0.2000001, 0.1, 0.1]).log()
    # Of the whole, 0.6 needs three tokens; of the best three (mass 0.8), 0.6 * 0.8 = 0.48 needs two.
    assert seen_often(logits, SamplingParams(seed=4, top_k=3, top_p=0.6)) == {0, 2}


@pytest.mark.parametrize("temperature", [1e-6, 1e-300])
def test_a_tiny_temperature_is_greedy_and_does_not_overflow(temperature: float) -> None:
    logits = torch.tensor([-3e4, 88.0, 90.0, 3e4, 2.9e4])
    assert seen_often(logits, SamplingParams(seed=5, temperature=temperature)) == {3}


@pytest.mark.parametrize("temperature", [1e8, 1e300])
def test_a_huge_temperature_is_uniform_over_what_is_not_banned(temperature: float) -> None:
    rows = torch.tensor([[0.0, 5.0, -5.0, 1.0]]).expand(300, -1).clone()
    params = SamplingParams(seed=6, temperature=temperature)
    tokens, _ = Sampler(4, "cpu").draw(rows, [Draw(params, p, banned=(1,)) for p in range(300)])
    counts = np.bincount(tokens, minlength=4)
    assert counts[1] == 0 and (counts[[0, 2, 3]] > 70).all()


def test_all_but_one_banned_leaves_that_one() -> None:
    banned = tuple(t for t in range(8) if t != 5)
    for params in (GREEDY, SamplingParams(seed=7), SamplingParams(seed=7, top_k=3, top_p=0.5, min_p=0.5)):
        assert draw(torch.randn(1, 8), Draw(params, 1, banned)) == (5,)


def test_banned_ids_beyond_the_vocabulary_are_harmless() -> None:
    assert draw([[1.0, 2.0]], Draw(GREEDY, 1, banned=(1, 2, 10**12))) == (0,)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=8, top_p=0.5, logprobs=2)])
def test_everything_banned_is_an_error_that_names_the_row(params: SamplingParams) -> None:
    with pytest.raises(FloatingPointError, match="row 1: no token is left"):
        draw(torch.randn(3, 4), Draw(GREEDY, 1), Draw(params, 1, banned=(0, 1, 2, 3)), Draw(GREEDY, 1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=9), SamplingParams(seed=9, top_k=3, logprobs=1)])
def test_logits_that_are_not_numbers_are_an_error_that_names_the_row(params: SamplingParams, bad: float) -> None:
    logits = torch.randn(3, 50)
    logits[2, 31] = bad
    with pytest.raises(FloatingPointError, match=f"row 2: .*{bad}"):
        draw(logits, *[Draw(params, 1)] * 3)


def test_sampling_without_a_seed_is_an_error() -> None:
    with pytest.raises(ValueError, match="seed"):
        draw([[0.0, 1.0]], Draw(SamplingParams(), 1))


def test_logprobs_are_taken_after_penalties_and_before_temperature_and_truncation() -> None:
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(4, 60, generator=generator) * 3
    plain = SamplingParams(seed=1, temperature=0.3, top_k=2, repetition_penalty=1.5, logprobs=6)
    draws = [
        Draw(replace(plain, frequency_penalty=0.5), 9, (2, 3), (1, 2, 3, 4), (4, 4, 5)),
        Draw(replace(plain, logprobs=None), 9, (), (1, 2), (3,)),
        Draw(replace(plain, logprobs=0), 9, (), (1, 2), (3,)),
        Draw(replace(GREEDY, logprobs=1), 9),
    ]
    tokens, found = Sampler(60, "cpu").draw(logits.clone(), draws)
    assert found[1] is None
    assert found[2] is not None and found[2].top == ()
    for row in (0, 2, 3):
        probs = softmax(penalized(logits[row].double().tolist(), draws[row]))
        expected = [math.log(p) if p else -math.inf for p in probs]
        got = found[row]
        assert got is not None
        assert got.logprob == pytest.approx(expected[tokens[row]], abs=1e-5)
        order = sorted(range(60), key=lambda t: -expected[t])[: draws[row].params.logprobs]
        assert [token for token, _ in got.top] == order
        assert [value for _, value in got.top] == pytest.approx([expected[t] for t in order], abs=1e-5)


def test_equal_logprobs_are_listed_by_id_and_banned_tokens_are_not_listed() -> None:
    rows = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 0.0]])
    _, found = Sampler(6, "cpu").draw(rows, [Draw(replace(GREEDY, logprobs=20), 1, banned=(2,))])
    assert found[0] is not None and [token for token, _ in found[0].top] == [1, 3, 0, 4, 5]


def test_no_logprobs_asked_gives_an_empty_tuple_and_no_rows_give_nothing() -> None:
    sampler = Sampler(5, "cpu")
    assert sampler.draw(torch.zeros(2, 5), [Draw(GREEDY, 1)] * 2) == ((0, 0), ())
    assert sampler.draw(torch.zeros(0, 5), []) == ((), ())


def test_logits_of_a_forward_in_inference_mode_can_be_penalised_and_sampled() -> None:
    with torch.inference_mode():
        logits = torch.zeros(2, 6)
    params = SamplingParams(seed=1, repetition_penalty=1.2, top_p=0.9, logprobs=1)
    tokens, _ = Sampler(6, "cpu").draw(logits, [Draw(params, 3, (0,), (1, 2), (3,)), Draw(GREEDY, 3)])
    assert tokens[0] in range(1, 6) and tokens[1] == 0
