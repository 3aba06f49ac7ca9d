"""The step-time model against machines whose law is known."""

from __future__ import annotations

import random

import pytest

from decode.step_time import LATEST, RARE, StepTime, Work

A, B, C, D, E = 3e6, 8e4, 2e5, 400.0, 20.0  # ns: the law of the machine


def truth(work: Work) -> float:
    prefill, decodes, context, product = work
    return A + B * prefill + C * decodes + D * context + E * product


def some_work(draw: random.Random) -> Work:
    decodes = draw.randrange(33)
    prefill = draw.choice([0, 0, draw.randrange(1, 257)])
    return Work(prefill, decodes, decodes * draw.randrange(20, 800), prefill * draw.randrange(1, 900))


def trained(steps: int, noise: float = 0.0, outliers: float = 0.0) -> StepTime:
    draw, model = random.Random(1), StepTime()
    for _ in range(steps):
        work = some_work(draw)
        factor = 1 + draw.gauss(0, noise)
        if draw.random() < outliers:
            factor *= 20
        model.learn(work, int(truth(work) * max(factor, 0.1)))
    return model


@pytest.mark.parametrize(("noise", "outliers", "allowed"), [(0.0, 0.0, 0.02), (0.05, 0.0, 0.05), (0.05, 0.03, 0.15)])
def test_the_law_of_a_machine_is_found(noise: float, outliers: float, allowed: float) -> None:
    model, draw = trained(600, noise, outliers), random.Random(2)
    errors = sorted(abs(model.predict(w) / truth(w) - 1) for w in (some_work(draw) for _ in range(300)))
    assert errors[150] <= allowed


def test_it_follows_a_machine_that_becomes_slower() -> None:
    model, draw = trained(600), random.Random(3)
    for _ in range(600):
        work = some_work(draw)
        model.learn(work, int(2 * truth(work)))
    errors = sorted(abs(model.predict(w) / (2 * truth(w)) - 1) for w in (some_work(draw) for _ in range(300)))
    assert errors[150] <= 0.05


def test_predictions_stay_finite_and_nonnegative_whatever_comes() -> None:
    model, draw = StepTime(), random.Random(4)
    for _ in range(500):
        model.learn(some_work(draw), draw.choice([0, 1, 10**6, 10**12]))
        assert 0 <= model.predict(some_work(draw)) < 10**16


def test_a_prompt_is_cut_to_what_fits() -> None:
    model = trained(600)
    work = Work(0, 8, 8 * 300, 0)
    for limit in (6e6, 1e7, 2e7):
        size = model.prefill_within(limit, work, 100, 10_000)
        grown = truth(work._replace(prefill_tokens=size, prefill_context=size * (100 + size // 2)))
        assert grown == pytest.approx(limit, rel=0.05)
    assert model.prefill_within(1e6, work, 100, 10_000) == 0
    assert model.prefill_within(1e12, work, 100, 256) == 256


def test_few_steps_with_prompts_are_later_than_it_says() -> None:
    """RARE of them, whatever the tail: here one in twenty takes half as long again, and one in two hundred twice."""
    draw, model, late, seen = random.Random(6), trained(100), 0, 0
    for _ in range(6000):
        work = some_work(draw)
        chance = draw.random()
        elapsed = int(truth(work) * (2.0 if chance < 0.005 else 1.5 if chance < 0.05 else draw.gauss(1, 0.03)))
        if work.prefill_tokens:
            seen += 1
            late += elapsed > model.late * model.predict(work)
        model.learn(work, elapsed)
    assert RARE / 2 < late / seen < 3 * RARE
    assert 1.3 < model.late < 2.5


def test_a_burst_of_slow_steps_is_not_held_against_it_for_long() -> None:
    draw, model = random.Random(7), trained(300, noise=0.02)
    for at in range(5100):
        work = some_work(draw)._replace(prefill_tokens=100)
        slow = 5 if at < 100 and draw.random() < 0.5 else draw.gauss(1, 0.02)
        model.learn(work, int(truth(work) * slow))
        if at == 99:
            assert 1.5 < model.late <= LATEST
    assert model.late < 1.2


def test_features_that_are_always_proportional_and_huge_make_no_trouble() -> None:
    model, work = StepTime(), Work(0, 4096, 409_600_000, 0)
    for _ in range(4000):
        model.learn(work, 1000)
    assert model.predict(work) == pytest.approx(1000, rel=0.05)
