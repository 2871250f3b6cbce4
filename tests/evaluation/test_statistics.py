"""Statistics against hand computation, enumeration and simulated coverage."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from ferrata.evaluation.statistics import interval, mean_at_k, paired_difference, pass_at_k

HOW = {"resamples": 2000, "confidence": 0.95, "seed": 17}


def binary(successes: int, tasks: int) -> np.ndarray:
    return np.arange(tasks) < successes


@pytest.mark.parametrize(("successes", "tasks"), [(0, 240), (240, 240), (7, 10), (1, 1), (0, 1)])
def test_binary_interval_is_wilsons(successes: int, tasks: int) -> None:
    estimate = interval(binary(successes, tasks), **HOW)
    expected = binomtest(successes, tasks).proportion_ci(method="wilson")
    assert estimate.value == successes / tasks
    assert estimate[1:] == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_by_hand() -> None:
    # 0 of 240 at z = 1.959964: high = z^2 / (n + z^2) = 3.841459 / 243.841459
    estimate = interval(binary(0, 240), **HOW)
    assert (estimate.value, estimate.low) == (0.0, 0.0)
    assert estimate.high == pytest.approx(0.0157539, abs=1e-7)
    estimate = interval(binary(240, 240), **HOW)
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(1 - 0.0157539, abs=1e-7)


def test_constant_and_nearly_constant_shares_are_not_claimed_as_certain() -> None:
    constant = interval(np.full(60, 0.5), **HOW)
    expected = binomtest(30, 60).proportion_ci(method="wilson")
    assert constant[1:] == pytest.approx((expected.low, expected.high))
    nothing, little = np.zeros(60), np.zeros(60)
    little[:4] = 0.25
    assert interval(little, **HOW).high > interval(nothing, **HOW).high > 0.05


def test_bootstrap_agrees_with_the_exact_distribution_of_two_values() -> None:
    # Off 0 and 1, so the bootstrap is used; its quantiles are those of a scaled binomial.
    values = np.where(binary(12, 40), 0.75, 0.25)
    estimate = interval(values, resamples=20_000, confidence=0.9, seed=3)
    low, high = (0.25 + 0.5 * binom.ppf(q, 40, 0.3) / 40 for q in (0.05, 0.95))
    assert estimate.value == pytest.approx(0.4)
    assert estimate[1:] == pytest.approx((low, high), abs=0.5 / 40 + 1e-9)


def test_same_arguments_same_floats_and_another_seed_differs() -> None:
    values = np.random.default_rng(1).random(50)
    assert interval(values, **HOW) == interval(values, **HOW)
    assert interval(values, **HOW) != interval(values, **{**HOW, "seed": 18})


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_coverage_of_the_binary_interval(rate: float) -> None:
    # Exact, not simulated: every outcome of 200 tasks, weighted by its probability.
    covered = 0.0
    for successes in range(201):
        estimate = interval(binary(successes, 200), **HOW)
        if estimate.low <= rate <= estimate.high:
            covered += float(binom.pmf(successes, 200, rate))
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_coverage_of_the_bootstrap_of_mean_at_4(rate: float) -> None:
    rng = np.random.default_rng(5)
    spread = 5.0  # tasks differ in difficulty: a beta distribution around the rate
    covered = 0
    for trial in range(1000):
        chances = rng.beta(rate * spread, (1 - rate) * spread, size=(200, 1))
        values = rng.random((200, 4)) < chances
        estimate = mean_at_k(values, resamples=400, confidence=0.95, seed=trial)
        covered += estimate.low <= rate <= estimate.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_mean_at_k_resamples_tasks_and_not_samples() -> None:
    # Four equal samples say no more than one: the interval must not shrink.
    one = np.random.default_rng(2).random((100, 1)) < 0.5
    assert mean_at_k(np.repeat(one, 4, axis=1), **HOW) == interval(one[:, 0], **HOW)
    with pytest.raises(ValueError, match="shape"):
        mean_at_k(np.zeros(4), **HOW)


def test_pass_at_k_equals_enumeration() -> None:
    for n in range(1, 8):
        for c, k in product(range(n + 1), range(1, n + 1)):
            draws = list(combinations(range(n), k))
            expected = sum(any(i < c for i in draw) for draw in draws) / len(draws)
            assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12), (n, c, k)


def test_pass_at_k_of_large_numbers_is_finite() -> None:
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)
    for wrong in ((4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)):
        with pytest.raises(ValueError, match="expected"):
            pass_at_k(*wrong)


def test_paired_difference_by_hand() -> None:
    # 20 tasks: 8 gained, 2 lost. McNemar, exact: 2 * P(X >= 8 | 10, 1/2) = 2 * 56 / 1024
    a = np.array([1] * 8 + [0] * 2 + [1] * 5 + [0] * 5)
    b = np.array([0] * 8 + [1] * 2 + [1] * 5 + [0] * 5)
    result = paired_difference(a, b, **HOW)
    assert result.diff == pytest.approx(0.3)
    assert result.p_value == pytest.approx(112 / 1024)
    # Resampled mean: sd = sqrt((10/20 - 0.09) / 20) = 0.143
    assert result.low == pytest.approx(0.3 - 1.96 * 0.143, abs=0.051)
    assert result.high == pytest.approx(0.3 + 1.96 * 0.143, abs=0.051)
    mirrored = paired_difference(b, a, **HOW)
    assert (mirrored.diff, mirrored.p_value) == (-result.diff, result.p_value)


def test_sign_flips_of_unequal_sizes_by_enumeration() -> None:
    a, b = np.array([3.0, 2.0, 0.0, 5.0]), np.array([1.0, 1.0, 4.0, 5.0])
    # |±2 ±1 ±4| >= |2 + 1 - 4| = 1: all 8 patterns, the smallest being 4 - 2 - 1 = 1
    assert paired_difference(a, b, **HOW).p_value == 1.0
    # |±1 ±2 ±4| >= 7: two of 8
    assert paired_difference(np.array([1.0, 2, 4, 0]), np.zeros(4), **HOW).p_value == 2 / 8


def test_drawn_sign_flips_are_close_to_exact_and_never_zero() -> None:
    rng = np.random.default_rng(4)
    diff = rng.normal(0.1, 1.0, 14)
    patterns = np.array(list(product((-1, 1), repeat=14)))
    exact = float((np.abs(patterns @ diff) >= abs(diff.sum()) - 1e-9).mean())
    assert paired_difference(diff, np.zeros(14), **HOW).p_value == pytest.approx(exact, abs=0.015)
    certain = paired_difference(rng.random(60) + 1, np.zeros(60), **HOW)
    assert certain.p_value == pytest.approx(1 / 10_001)


def test_p_value_is_uniform_or_larger_without_a_difference() -> None:
    rng = np.random.default_rng(6)
    rejected = 0
    for _ in range(400):
        a, b = rng.random((2, 100)) < 0.6
        rejected += paired_difference(a, b, resamples=50, confidence=0.95, seed=0).p_value <= 0.05
    assert rejected / 400 <= 0.07


def test_coverage_of_the_paired_interval() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for trial in range(600):
        ease = rng.random(200)
        a, b = rng.random(200) < 0.3 + 0.6 * ease, rng.random(200) < 0.8 * ease
        result = paired_difference(a, b, resamples=400, confidence=0.95, seed=trial)
        covered += result.low <= 0.2 <= result.high
    assert 0.93 <= covered / 600 <= 0.97


def test_equal_arms_and_total_gain_keep_a_width() -> None:
    same = binary(100, 240)
    result = paired_difference(same, same, **HOW)
    # No gain, no loss: each has Wilson's upper limit 0.0157539
    assert result == pytest.approx((0.0, -0.0157539, 0.0157539, 1.0), abs=1e-7)
    result = paired_difference(np.ones(240), np.zeros(240), **HOW)
    assert (result.diff, result.high) == (1.0, 1.0)
    assert 0.97 < result.low < 0.98
    assert 0 < result.p_value < 1e-60


@pytest.mark.parametrize(
    ("values", "how", "message"),
    [
        (np.array([]), HOW, "tasks >= 1"),
        (np.zeros((2, 2)), HOW, "tasks >= 1"),
        (np.array([0.0, np.nan]), HOW, "NaN"),
        (np.zeros(3), {**HOW, "confidence": 95}, "confidence"),
        (np.zeros(3), {**HOW, "resamples": 0}, "resample"),
    ],
)
def test_bad_input_is_named(values: np.ndarray, how: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interval(values, **how)
    with pytest.raises(ValueError, match=message):
        paired_difference(values, values, **how)


def test_pairs_need_equal_shapes() -> None:
    with pytest.raises(ValueError, match="equal shapes"):
        paired_difference(np.zeros(3), np.zeros(4), **HOW)
