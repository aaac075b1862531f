"""A permutation test of two sets of scores, and the interval of their difference that says the same as the test.

If two sets come from one distribution, whatever it is, every way to part their pooled scores is as likely as the one
seen: the share of partings that lie as far apart is a p-value that holds for any number of seeds, with ties too. All
partings are tried where they are few, else 10,000 drawn ones. The distance is that of the interquartile means, plus a
thousandth of that of the means, which tells partings apart that differ only in what the interquartile mean cuts off.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations

import numpy as np

from rl_training.results.statistics import FloatArray, IntArray, Interval, interquartile_mean, mean

_MOST_ENUMERATED = 20_000
_DRAWN = 10_000
_SEED = 0
_HALVINGS = 16  # the ends of an interval are right to about five digits
_TIE_BREAK = 1e-3
_ROUNDING = 1e-12  # distances that differ by less than this share of the scores are equal
_SHARE_SPENT = 0.6

MOST_CONFIDENCE = 0.999
"""Beyond this, 10,000 drawn partings say too little."""


def allowed_p_value(confidence: float) -> float:
    """The largest p-value that decides: less than `1 - confidence`, so that a few hundred trials show no more either.

    A test that gives 5 % false alarms in the long run gives more in four of ten checks with 200 trials.
    """
    return _SHARE_SPENT * (1.0 - confidence)


def permutation_p_value(a: FloatArray, b: FloatArray) -> float:
    """How often a parting of the pooled scores lies as far apart as `a` and `b`; their order does not matter."""
    smaller, larger = sorted((a, b), key=len)
    pooled = np.sort(np.concatenate([smaller, larger]))
    orders, is_complete = _partings(len(smaller), len(pooled))
    parted = pooled[orders]
    distances = np.abs(_location(parted[:, : len(smaller)]) - _location(parted[:, len(smaller) :]))
    observed = np.abs(_location(smaller) - _location(larger))
    as_far = int(np.sum(distances >= observed - _ROUNDING * np.abs(pooled).max()))
    return as_far / len(orders) if is_complete else (as_far + 1) / (len(orders) + 1)


def _location(values: FloatArray) -> FloatArray:
    return interquartile_mean(values) + _TIE_BREAK * mean(values)


@lru_cache(maxsize=4)
def _partings(smaller: int, total: int) -> tuple[IntArray, bool]:
    """Orders of the pooled scores, the smaller set first, [parting, score]; and whether these are all there are."""
    if math.comb(total, smaller) > _MOST_ENUMERATED:
        orders = np.tile(np.arange(total), (_DRAWN, 1))
        return np.random.default_rng(_SEED).permuted(orders, axis=1), False
    chosen = np.array(list(combinations(range(total), smaller)))
    others = np.ones((len(chosen), total), dtype=bool)
    np.put_along_axis(others, chosen, False, axis=1)
    return np.hstack([chosen, np.nonzero(others)[1].reshape(len(chosen), -1)]), True


def can_decide(num_a: int, num_b: int, confidence: float) -> bool:
    """Whether any scores of so many seeds, however far apart, would decide."""
    return permutation_p_value(np.zeros(num_a), np.ones(num_b)) <= allowed_p_value(confidence)


def fewest_seeds(confidence: float) -> int:
    """The least number of seeds per side that can decide."""
    number = 1
    while not can_decide(number, number, confidence):
        number += 1
    return number


def difference_interval(a: FloatArray, b: FloatArray, confidence: float) -> Interval:
    """The differences b - a of interquartile means that the test does not reject; unbounded with too few seeds.

    It contains the difference seen, and 0 if, and only if, the test does not decide.
    """
    if not can_decide(len(a), len(b), confidence):
        return Interval(-math.inf, math.inf, confidence)

    def is_rejected(shift: float) -> bool:
        return permutation_p_value(a, b - shift) <= allowed_p_value(confidence)

    seen = float(interquartile_mean(b) - interquartile_mean(a))
    step = float(np.ptp(np.concatenate([a, b]))) or 1.0
    return Interval(_end(is_rejected, seen, -step), _end(is_rejected, seen, step), confidence)


def _end(is_rejected: Callable[[float], bool], seen: float, step: float) -> float:
    """The farthest shift from the one seen, in the direction of `step`, that is not rejected."""
    inside, outside = seen, seen + step
    if seen * step < 0.0:  # 0 lies on this side: whether it is inside must agree with the test
        if is_rejected(0.0):
            return _boundary(is_rejected, seen, 0.0)
        inside, outside = 0.0, step
    while not is_rejected(outside):
        inside, outside, step = outside, outside + 2.0 * step, 2.0 * step
    return _boundary(is_rejected, inside, outside)


def _boundary(is_rejected: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last shift inside, by halving."""
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2.0
        inside, outside = (inside, middle) if is_rejected(middle) else (middle, outside)
    return inside
