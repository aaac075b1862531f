"""The test behind a verdict: exact against a plain enumeration, few false alarms for few seeds, clear effects found."""

import itertools
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rl_training.results.permutation import (
    allowed_p_value,
    can_decide,
    difference_interval,
    min_seeds,
    permutation_p_value,
)
from rl_training.results.statistics import FloatArray, interquartile_mean

TRIALS = 200
LEVEL = allowed_p_value(0.95)

Draw = Callable[[np.random.Generator, int], FloatArray]
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, seeds: rng.normal(size=seeds),
    "skewed": lambda rng, seeds: rng.lognormal(size=seeds),
    "two clusters": lambda rng, seeds: rng.choice([100.0, 500.0], size=seeds) + rng.normal(size=seeds),
    "mostly 500": lambda rng, seeds: np.where(rng.random(seeds) < 0.7, 500.0, rng.integers(100, 500, seeds)),
}


def location(values: Sequence[float]) -> float:
    cut = len(values) // 4
    middle = sorted(values)[cut : len(values) - cut]
    return statistics.fmean(middle) + 0.001 * statistics.fmean(values)


def enumerated_p_value(a: Sequence[float], b: Sequence[float]) -> float:
    pooled = [*a, *b]
    distances = []
    for chosen in itertools.combinations(range(len(pooled)), len(a)):
        left = [pooled[index] for index in chosen]
        right = [value for index, value in enumerate(pooled) if index not in chosen]
        distances.append(abs(location(left) - location(right)))
    return sum(distance >= distances[0] - 1e-9 for distance in distances) / len(distances)


@pytest.mark.parametrize("sizes", [(1, 4), (3, 3), (4, 4), (5, 3), (5, 6)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_p_value_equals_that_of_a_plain_enumeration(name: str, sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    a, b = (DISTRIBUTIONS[name](rng, size) for size in sizes)
    assert permutation_p_value(a, b) == pytest.approx(enumerated_p_value(a.tolist(), b.tolist()))


def test_random_splits_come_near_the_full_enumeration() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=6), rng.normal(size=12) + 0.8  # 18,564 splits are enumerated, 27,132 no longer
    apart = np.append(b, 0.9)
    assert permutation_p_value(a, apart) == pytest.approx(enumerated_p_value(a.tolist(), apart.tolist()), abs=0.01)


@pytest.mark.parametrize("sizes", [(5, 5), (4, 7), (12, 12), (10, 14)])
def test_neither_the_order_of_the_sides_nor_that_of_the_seeds_matters(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=sizes[0]), rng.normal(size=sizes[1]) + 0.7
    assert permutation_p_value(a, b) == permutation_p_value(b, a) == permutation_p_value(a[::-1], rng.permutation(b))


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_equal_groups_raise_at_most_5_percent_false_alarms(name: str, seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    draw = DISTRIBUTIONS[name]
    alarms = sum(permutation_p_value(draw(rng, seeds), draw(rng, seeds)) <= LEVEL for _ in range(TRIALS))
    assert alarms <= 0.05 * TRIALS
    assert alarms == 0 or seeds > 3


@pytest.mark.parametrize(("seeds", "effect"), [(5, 4.0), (10, 2.0), (20, 1.5)])
def test_a_clear_effect_is_found_in_nine_of_ten_trials(seeds: int, effect: float) -> None:
    rng = np.random.default_rng(seeds)
    pairs = rng.normal(size=(100, 2, seeds))
    assert sum(permutation_p_value(a, b + effect) <= LEVEL for a, b in pairs) >= 90


@pytest.mark.parametrize("seeds", [4, 5, 8, 12])
def test_groups_of_equal_scores_are_told_apart_though_the_interquartile_mean_cuts_a_half(seeds: int) -> None:
    assert permutation_p_value(np.full(seeds, 100.0), np.full(seeds, 500.0)) <= LEVEL
    assert permutation_p_value(np.full(seeds, 500.0), np.full(seeds, 500.0)) == 1.0


def test_the_fewest_seeds_that_can_decide_follow_from_the_number_of_splits() -> None:
    assert not can_decide(3, 3, 0.95)  # 2 of 20 splits: p = 0.1 at best
    assert can_decide(4, 4, 0.95)  # 2 of 70
    assert [min_seeds(confidence) for confidence in (0.5, 0.95, 0.99, 0.999)] == [3, 4, 6, 7]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("sizes", [(4, 4), (5, 5), (4, 6)])
def test_the_interval_holds_0_just_when_the_test_does_not_decide(name: str, sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    for shift in (0.0, 1.0, -3.0, 300.0):
        a, b = DISTRIBUTIONS[name](rng, sizes[0]), DISTRIBUTIONS[name](rng, sizes[1]) + shift
        seen = float(interquartile_mean(b) - interquartile_mean(a))
        interval = difference_interval(a, b, 0.95)
        assert seen in interval
        assert seen == 0.0 or (0.0 in interval) == (permutation_p_value(a, b) > LEVEL)
        mirrored = difference_interval(b, a, 0.95)
        assert (interval.low, interval.high) == pytest.approx((-mirrored.high, -mirrored.low), rel=1e-3, abs=1e-3)


def test_the_interval_covers_the_true_difference_at_least_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    pairs = rng.lognormal(size=(200, 2, 5))
    assert np.mean([7.0 in difference_interval(a, b + 7.0, 0.95) for a, b in pairs]) >= 0.95


def test_too_few_seeds_leave_the_interval_open() -> None:
    assert not difference_interval(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0]), 0.95).is_bounded


def test_scores_without_any_spread_give_an_interval_of_one_point() -> None:
    interval = difference_interval(np.full(5, 500.0), np.full(5, 500.0), 0.95)
    assert (interval.low, interval.high) == pytest.approx((0.0, 0.0), abs=1e-3)
