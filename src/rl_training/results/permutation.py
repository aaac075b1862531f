"""A permutation test of two sets of scores, and a confidence interval of their difference that agrees with the test.

If both sets come from the same distribution, every way to split the pooled scores is equally likely. So the share of
splits whose two parts are at least as far apart as the observed sets is a p-value, for any number of seeds and with
ties. If there are few splits, all of them are tried, otherwise 10,000 random ones. The distance is the difference of
the interquartile means plus a thousandth of the difference of the means. The second term separates splits that differ
only in the scores that the interquartile mean cuts off.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations

import numpy as np

from rl_training.results.statistics import FloatArray, IntArray, Interval, interquartile_mean, mean

_MAX_ENUMERATED = 20_000
_NUM_RANDOM = 10_000
_SEED = 0
_BISECTIONS = 16  # gives about five correct digits of an interval's ends
_TIE_BREAK = 1e-3
_ROUNDING = 1e-12  # distances that differ by less than this fraction of the largest score count as equal
_ALPHA_SHARE = 0.6

MAX_CONFIDENCE = 0.999
"""The highest confidence for which 10,000 random splits are enough."""


def allowed_p_value(confidence: float) -> float:
    """Return the largest p-value that gives a verdict.

    It is smaller than `1 - confidence`, so that false alarms stay below that even in simulations of a few hundred
    trials. A test with 5 % false alarms in the long run shows more than 5 % in four of ten simulations of 200 trials.
    """
    return _ALPHA_SHARE * (1.0 - confidence)


def permutation_p_value(a: FloatArray, b: FloatArray) -> float:
    """Return the share of splits of the pooled scores that are at least as far apart as `a` and `b` (two-sided)."""
    smaller, larger = sorted((a, b), key=len)
    pooled = np.sort(np.concatenate([smaller, larger]))
    orders, is_complete = _splits(len(smaller), len(pooled))
    permuted = pooled[orders]
    distances = np.abs(_location(permuted[:, : len(smaller)]) - _location(permuted[:, len(smaller) :]))
    observed = np.abs(_location(smaller) - _location(larger))
    as_far = int(np.sum(distances >= observed - _ROUNDING * np.abs(pooled).max()))
    return as_far / len(orders) if is_complete else (as_far + 1) / (len(orders) + 1)


def _location(values: FloatArray) -> FloatArray:
    return interquartile_mean(values) + _TIE_BREAK * mean(values)


@lru_cache(maxsize=4)
def _splits(smaller: int, total: int) -> tuple[IntArray, bool]:
    """Return orders of the pooled scores with the smaller set first, [split, score], and whether they are complete."""
    if math.comb(total, smaller) > _MAX_ENUMERATED:
        orders = np.tile(np.arange(total), (_NUM_RANDOM, 1))
        return np.random.default_rng(_SEED).permuted(orders, axis=1), False
    chosen = np.array(list(combinations(range(total), smaller)))
    others = np.ones((len(chosen), total), dtype=bool)
    np.put_along_axis(others, chosen, False, axis=1)
    return np.hstack([chosen, np.nonzero(others)[1].reshape(len(chosen), -1)]), True


def can_decide(num_a: int, num_b: int, confidence: float) -> bool:
    """Return whether this many seeds can give a verdict at all, however far apart their scores are."""
    return permutation_p_value(np.zeros(num_a), np.ones(num_b)) <= allowed_p_value(confidence)


def min_seeds(confidence: float) -> int:
    """Return the smallest number of seeds per side that can give a verdict."""
    number = 1
    while not can_decide(number, number, confidence):
        number += 1
    return number


def difference_interval(a: FloatArray, b: FloatArray, confidence: float) -> Interval:
    """Return the differences b - a of interquartile means that the test does not reject; infinite with too few seeds.

    The interval contains the observed difference. It contains 0 if and only if the test gives no verdict.
    """
    if not can_decide(len(a), len(b), confidence):
        return Interval(-math.inf, math.inf, confidence)

    def is_rejected(shift: float) -> bool:
        return permutation_p_value(a, b - shift) <= allowed_p_value(confidence)

    observed = float(interquartile_mean(b) - interquartile_mean(a))
    step = float(np.ptp(np.concatenate([a, b]))) or 1.0
    return Interval(_interval_end(is_rejected, observed, -step), _interval_end(is_rejected, observed, step), confidence)


def _interval_end(is_rejected: Callable[[float], bool], observed: float, step: float) -> float:
    """Return the farthest shift from the observed one, in the direction of `step`, that is not rejected."""
    inside, outside = observed, observed + step
    if observed * step < 0.0:  # 0 is on this side, and whether the interval contains it must agree with the test
        if is_rejected(0.0):
            return _boundary(is_rejected, observed, 0.0)
        inside, outside = 0.0, step
    while not is_rejected(outside):
        inside, outside, step = outside, outside + 2.0 * step, 2.0 * step
    return _boundary(is_rejected, inside, outside)


def _boundary(is_rejected: Callable[[float], bool], inside: float, outside: float) -> float:
    """Find the last shift that is not rejected, by bisection."""
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2.0
        inside, outside = (inside, middle) if is_rejected(middle) else (middle, outside)
    return inside
