"""Statistics over seeds against numbers worked out by hand and against full enumerations."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from rl_training.errors import ConfigError
from rl_training.results.statistics import (
    Bootstrap,
    Statistic,
    estimate,
    format_score,
    interquartile_mean,
    mean,
    median,
    probability_of_improvement,
)

SKEWED = [1.0, 2.0, 4.0, 9.0]
T_TABLE = {2: 4.30265, 4: 2.77645, 9: 2.26216, 30: 2.04227}
"""Degrees of freedom: Student's t at 97.5 %, from a printed table."""


def exact_quantiles(values: Sequence[float], statistic: Statistic, tail: float) -> tuple[float, float]:
    """The ends of the interval from all resamples of `values`, each as likely as the others."""
    outcomes = sorted(float(statistic(np.array(drawn))) for drawn in itertools.product(values, repeat=len(values)))
    position = math.floor(tail * len(outcomes))
    return outcomes[position], outcomes[-1 - position]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 2.0, 9.0], 4.0),  # fewer than four: nothing is cut
        ([9.0, 1.0, 4.0, 2.0], 3.0),  # without 1 and 9
        ([0.0, 1.0, 2.0, 3.0, 100.0], 2.0),
        ([-50.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1_000.0], 3.5),  # two cut at each end
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == expected


@pytest.mark.parametrize("count", range(1, 30))
def test_the_interquartile_mean_drops_whole_runs_one_by_one(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    remaining = sorted(values)
    for _ in range(int(0.25 * count)):
        remaining.remove(min(remaining))
        remaining.remove(max(remaining))
    assert interquartile_mean(values) == pytest.approx(math.fsum(remaining) / len(remaining))


def test_statistics_reduce_the_last_axis_of_any_shape() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    for statistic in (mean, median, interquartile_mean):
        assert statistic(values).tolist() == [[1.5, 5.5, 9.5], [13.5, 17.5, 21.5]]


@pytest.mark.parametrize("statistic", [mean, median, interquartile_mean])
def test_the_interval_equals_that_of_all_256_resamples_of_four_seeds(statistic: Statistic) -> None:
    bootstrap = Bootstrap(confidence=0.5, resamples=20_000)
    found = estimate(SKEWED, statistic, bootstrap)
    low, high = exact_quantiles(SKEWED, statistic, bootstrap.tail(4, 1))
    assert found.value == float(statistic(np.array(SKEWED)))
    assert found.interval.low == pytest.approx(low, abs=0.26)  # the outcomes lie a quarter apart at least
    assert found.interval.high == pytest.approx(high, abs=0.26)


@pytest.mark.parametrize("degrees", T_TABLE)
def test_the_tails_are_those_of_students_t_widened_for_the_resampled_spread(degrees: int) -> None:
    seeds = degrees + 1
    reach = T_TABLE[degrees] * math.sqrt(seeds / (seeds - 1))
    assert Bootstrap().tail(seeds, 1) == pytest.approx(0.5 * math.erfc(reach / math.sqrt(2.0)), rel=1e-4)


def test_more_tasks_and_more_seeds_bring_the_tails_back_to_plain_percentiles() -> None:
    assert Bootstrap().tail(5, 1) < Bootstrap().tail(5, 20) < Bootstrap().tail(500, 20) < 0.025
    assert Bootstrap().tail(500, 20) == pytest.approx(0.025, rel=0.01)


def test_seeds_are_resampled_within_their_task() -> None:
    found = estimate([[0.0, 100.0], [0.0, 100.0], [0.0, 100.0]], mean)
    assert found.value == found.interval.low == found.interval.high == 50.0


def test_tasks_are_resampled_apart_from_each_other() -> None:
    """Two seeds that are (0, 1) on one task and (1, 0) on the other: only separate draws move the mean from 1/2."""
    found = estimate([[0.0, 1.0], [1.0, 0.0]], mean, Bootstrap(confidence=0.5))
    assert found.interval.low < 0.5 < found.interval.high


def test_the_same_settings_give_the_same_interval_and_another_seed_another() -> None:
    scores = np.random.default_rng(0).normal(size=30)
    assert estimate(scores) == estimate(scores)
    assert estimate(scores) != estimate(scores, bootstrap=Bootstrap(seed=1))


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ConfigError, match=f"confidence={confidence}: give a number between 0 and 1"):
        Bootstrap(confidence=confidence)


def test_a_single_seed_says_nothing_about_the_spread() -> None:
    found = estimate([3.0])
    assert found.value == 3.0
    assert not found.interval.is_bounded
    assert 1e9 in found.interval


@pytest.mark.parametrize("seeds", [5, 10])
def test_a_95_percent_interval_covers_the_truth_about_95_times_in_a_hundred(seeds: int) -> None:
    scores = np.random.default_rng(seeds).normal(size=(400, seeds))
    covered = np.mean([0.0 in estimate(row, bootstrap=Bootstrap(resamples=2_000)).interval for row in scores])
    assert 0.91 <= covered <= 0.985


@pytest.mark.parametrize(
    "scores", [[], [float("nan"), 1.0], [[1.0], [float("inf")]], [[[1.0]]]], ids=["empty", "nan", "inf", "3-d"]
)
def test_scores_that_are_no_finite_matrix_are_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="give finite numbers"):
        estimate(scores)


def test_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    a, b = [1.0, 3.0, 3.0], [3.0, 5.0]
    # 3 beats 1 and ties with 3 twice; 5 beats all three: (1 + 0.5 + 0.5 + 3) / 6.
    assert probability_of_improvement(a, b).value == pytest.approx(5.0 / 6.0)
    assert probability_of_improvement(b, a).value == pytest.approx(1.0 / 6.0)
    assert probability_of_improvement(a, a).value == 0.5


def test_probability_of_improvement_is_the_mean_over_tasks() -> None:
    a, b = [[0.0, 5.0], [0.0, 5.0]], [[1.0, 5.0], [1.0, 5.0]]
    assert probability_of_improvement(a, b).value == 0.75
    with pytest.raises(ValueError, match="2 and 1 tasks"):
        probability_of_improvement(a, [1.0, 2.0])


def test_the_ends_of_the_probability_of_improvement_are_z_deviations_away() -> None:
    found = probability_of_improvement([1.0, 4.0, 6.0], [2.0, 5.0, 7.0, 8.0])
    for end in (found.interval.low, found.interval.high):
        # Hanley and McNeil's variance of the share of 3 * 4 pairs, were the end the truth, with 3.5 runs per side.
        q1, q2 = end / (2.0 - end), 2.0 * end**2 / (1.0 + end)
        variance = (end * (1.0 - end) + 2.5 * (q1 - end**2) + 2.5 * (q2 - end**2)) / 12.0
        assert abs(found.value - end) == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-5)


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_the_interval_of_the_probability_of_improvement_covers_the_truth_near_one_too(shift: float) -> None:
    truth = 0.5 * math.erfc(-shift / 2.0)
    scores = np.random.default_rng(1).normal(size=(400, 2, 5))
    covered = np.mean([truth in probability_of_improvement(a, b + shift).interval for a, b in scores])
    assert 0.92 <= covered <= 0.985


def test_more_tasks_narrow_the_interval_by_the_root_of_their_number() -> None:
    a, b = np.array([1.0, 4.0, 6.0])[:, None], np.array([2.0, 5.0, 7.0])[:, None]
    one, four = probability_of_improvement(a, b), probability_of_improvement(a.repeat(4, 1), b.repeat(4, 1))
    assert four.value == one.value
    assert four.value - four.interval.low == pytest.approx((one.value - one.interval.low) / 2.0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00"),
        (12_345.6, "12,346"),
        (-475.26, "-475.3"),
        (12.345, "12.35"),
        (-0.012345, "-0.0123"),
        (1e-9, "1e-09"),
    ],
)
def test_scores_are_shown_with_the_digits_that_matter(value: float, shown: str) -> None:
    assert format_score(value) == shown
