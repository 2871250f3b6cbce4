"""Intervals and differences over tasks: what may be claimed from a finite set of them.

The task is the unit that is drawn: samples of one task share its difficulty, so they are averaged
first and never counted as independent. Shape suffixes: T tasks, K samples per task.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# With fewer tasks than this off the common value, resampling sees almost no variation and its
# interval shrinks towards zero width just where the evidence is thinnest.
FEW = 5


class Estimate(NamedTuple):
    """A mean over tasks with its confidence interval, all in the unit of the values."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A paired mean difference with its interval, and a two-sided p-value in (0, 1]."""

    diff: float
    low: float
    high: float
    p_value: float


def interval(
    values_per_task: NDArray[Any], *, resamples: int, confidence: float, seed: int
) -> Estimate:
    """Mean over tasks and its two-sided confidence interval.

    Two methods, chosen by the values alone:

    - Wilson's score interval (Wilson 1927, J. Am. Stat. Assoc. 22:209) with T trials if every value
      is 0 or 1, as greedy success is. The bootstrap of such a mean is no more than a binomial
      quantile at the observed rate: it covers too little near 0 and 1 and claims [0, 0] for 0 of
      240. The same interval is used for values in [0, 1] of which fewer than 5 differ from the
      most common one; it is then wide rather than narrow, since no distribution on [0, 1] has
      a larger variance than the binary one of the same mean.
    - The percentile bootstrap over tasks (Efron & Tibshirani 1993, ch. 13) for all others, as
      mean@k.

    Args:
        values_per_task: shape (T,), finite, one number per task; T >= 1, or >= 2 where values lie
            outside [0, 1].
        resamples: bootstrap resamples, >= 1.
        confidence: level in (0, 1).
        seed: of the resampling; the same arguments give the same floats.

    Raises:
        ValueError: wrong shape, no tasks, non-finite values, or a level outside (0, 1).
    """
    values_T = _vector(values_per_task, confidence, resamples)
    mean = float(values_T.mean())
    binary = bool(np.isin(values_T, (0.0, 1.0)).all())
    bounded = bool(((values_T >= 0.0) & (values_T <= 1.0)).all())
    if binary or (bounded and _off_the_mode(values_T) < FEW):
        return Estimate(mean, *_wilson(mean, values_T.size, confidence))
    return Estimate(mean, *_percentile(values_T, resamples, confidence, seed))


def mean_at_k(values: NDArray[Any], *, resamples: int, confidence: float, seed: int) -> Estimate:
    """Mean over K samples per task, then over tasks; the interval resamples tasks, as `interval`.

    Args:
        values: shape (T, K), one row per task, K >= 1.
        resamples, confidence, seed: as for `interval`.

    Raises:
        ValueError: as `interval`, or `values` is not a matrix with at least one column.
    """
    values_T_K = np.asarray(values, dtype=np.float64)
    if values_T_K.ndim != 2 or values_T_K.shape[1] == 0:
        raise ValueError(f"expected shape (tasks, samples >= 1), found {values_T_K.shape}")
    return interval(values_T_K.mean(axis=1), resamples=resamples, confidence=confidence, seed=seed)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples of a task is right.

    1 - C(n - c, k) / C(n, k) as a running product, so that no large binomial is formed
    (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    Args:
        n: samples drawn, n >= k.
        c: right ones among them, 0 <= c <= n.
        k: samples allowed, k >= 1.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: n, c, k outside these ranges.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"expected 1 <= k <= n and 0 <= c <= n, found n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def paired_difference(
    a: NDArray[Any], b: NDArray[Any], *, resamples: int, confidence: float, seed: int
) -> Difference:
    """Mean of a - b over the same tasks, its interval, and a sign-flip permutation p-value.

    Interval: percentile bootstrap of the per-task differences. Where fewer than 5 of them differ
    from the most common one (two arms that agree on all tasks would get [0, 0]) and all lie in
    [-1, 1], gains and losses get a Wilson interval each, combined by the square-and-add rule
    (Newcombe 1998, Stat. Med. 17:873; Zou & Donner 2008, Stat. Med. 27:1693).

    p-value: under the null hypothesis each difference is as likely to have the other sign
    (Fisher 1935, The Design of Experiments, sec. 21). Exact for differences of one magnitude, as
    binary success gives (it is then McNemar's exact test), and for at most 12 that are not zero;
    otherwise from 10,000 seeded draws, counting the observed one (Phipson & Smyth 2010, Stat. Appl.
    Genet. Mol. Biol. 9:39), so that it is never 0.

    Args:
        a, b: shape (T,), finite; index t is the same task in both.
        resamples, confidence, seed: as for `interval`.

    Raises:
        ValueError: as `interval`, or the shapes differ.
    """
    a_T = _vector(a, confidence, resamples)
    b_T = _vector(b, confidence, resamples)
    if a_T.shape != b_T.shape:
        raise ValueError(f"paired values need equal shapes, found {a_T.shape} and {b_T.shape}")
    diff_T = a_T - b_T
    diff = float(diff_T.mean())
    if bool((np.abs(diff_T) <= 1.0).all()) and _off_the_mode(diff_T) < FEW:
        low, high = _gains_minus_losses(diff_T, confidence)
    else:
        low, high = _percentile(diff_T, resamples, confidence, seed)
    return Difference(diff, low, high, _sign_flip(diff_T, seed))


def _vector(values: NDArray[Any], confidence: float, resamples: int) -> Floats:
    values_T = np.asarray(values, dtype=np.float64)
    if values_T.ndim != 1 or values_T.size == 0:
        raise ValueError(f"expected shape (tasks >= 1,), found {values_T.shape}")
    if not np.isfinite(values_T).all():
        raise ValueError("expected finite values, found NaN or infinity")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"expected a confidence in (0, 1), found {confidence}")
    if resamples < 1:
        raise ValueError(f"expected at least 1 resample, found {resamples}")
    return values_T


def _off_the_mode(values_T: Floats) -> int:
    # Rounded, because 1 - 0.9 and 0.1 are the same difference to a reader but not to a float.
    counts = np.unique(values_T.round(12), return_counts=True)[1]
    return int(values_T.size - counts.max())


def _wilson(mean: float, trials: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval by formula: `mean` need not be a whole number of successes."""
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2.0) ** 2
    centre = (mean + z2 / (2 * trials)) / (1 + z2 / trials)
    half = sqrt(z2 * (mean * (1 - mean) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    # At 0 and 1 the limit equals the mean but for rounding, and must not pass it.
    return max(0.0, min(centre - half, mean)), min(1.0, max(centre + half, mean))


def _percentile(
    values_T: Floats, resamples: int, confidence: float, seed: int
) -> tuple[float, float]:
    from scipy.stats import bootstrap

    result = bootstrap(
        (values_T,),
        np.mean,
        n_resamples=resamples,
        batch=1000,  # bounds memory at 1000 x T floats
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _gains_minus_losses(diff_T: Floats, confidence: float) -> tuple[float, float]:
    gain = float(np.maximum(diff_T, 0.0).mean())
    loss = float(np.maximum(-diff_T, 0.0).mean())
    gain_low, gain_high = _wilson(gain, diff_T.size, confidence)
    loss_low, loss_high = _wilson(loss, diff_T.size, confidence)
    low = gain - loss - sqrt((gain - gain_low) ** 2 + (loss_high - loss) ** 2)
    high = gain - loss + sqrt((gain_high - gain) ** 2 + (loss - loss_low) ** 2)
    return max(-1.0, low), min(1.0, high)


def _sign_flip(diff_T: Floats, seed: int, draws: int = 10_000, exact_up_to: int = 12) -> float:
    sizes = np.abs(diff_T[np.abs(diff_T) > 1e-12])  # a zero has no sign to flip
    if sizes.size == 0:
        return 1.0
    if bool(np.allclose(sizes, sizes[0], rtol=0.0, atol=1e-12)):
        from scipy.stats import binomtest

        return float(binomtest(int((diff_T > 1e-12).sum()), sizes.size, 0.5).pvalue)
    observed = abs(float(diff_T.sum())) - 1e-9  # ties count as extreme despite rounding
    if sizes.size <= exact_up_to:
        patterns = np.arange(2**sizes.size)[:, None] >> np.arange(sizes.size) & 1
        return float((np.abs((2 * patterns - 1) @ sizes) >= observed).mean())
    signs = np.random.default_rng(seed).integers(0, 2, (draws, sizes.size), dtype=np.int8) * 2 - 1
    extreme = int((np.abs(signs @ sizes) >= observed).sum())
    return (extreme + 1) / (draws + 1)
