"""Curves over env steps: alignment without extrapolation, bands, areas and steps to a threshold, by hand."""

import numpy as np
import pytest

from rl_training.results.curves import (
    AlignedCurves,
    Curve,
    align_curves,
    area_under_curve,
    band,
    sample_efficiency,
)
from rl_training.results.statistics import estimate, interquartile_mean, mean

NAN = float("nan")


def curve(steps: list[float], values: list[float]) -> Curve:
    return Curve(np.array(steps), np.array(values))


EARLY = curve([0.0, 10.0, 20.0], [0.0, 10.0, 30.0])
LATE = curve([5.0, 15.0, 25.0], [1.0, 3.0, 5.0])


def test_curves_are_interpolated_on_all_steps_inside_their_own_range_only() -> None:
    aligned = align_curves([EARLY, LATE])
    assert aligned.steps.tolist() == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
    np.testing.assert_array_equal(aligned.values[0], [0.0, 5.0, 10.0, 20.0, 30.0, NAN])
    np.testing.assert_array_equal(aligned.values[1], [NAN, 1.0, 2.0, 3.0, 4.0, 5.0])


def test_stepwise_curves_hold_their_last_value() -> None:
    aligned = align_curves([EARLY, LATE], stepwise=True)
    np.testing.assert_array_equal(aligned.values[0], [0.0, 0.0, 10.0, 10.0, 30.0, NAN])
    np.testing.assert_array_equal(aligned.values[1], [NAN, 1.0, 1.0, 3.0, 3.0, 5.0])


def test_the_common_part_is_where_no_seed_is_missing() -> None:
    common = align_curves([EARLY, LATE]).common()
    assert common.steps.tolist() == [5.0, 10.0, 15.0, 20.0]
    assert common.values.tolist() == [[5.0, 10.0, 20.0, 30.0], [1.0, 2.0, 3.0, 4.0]]


def test_an_empty_curve_leaves_nothing_in_common() -> None:
    aligned = align_curves([EARLY, curve([], [])])
    assert np.isnan(aligned.values[1]).all()
    assert aligned.common().steps.tolist() == []
    assert band(aligned).centre.tolist() == []
    assert align_curves([]).steps.tolist() == []


def test_a_band_has_at_every_step_the_estimate_of_the_values_there() -> None:
    values = np.random.default_rng(0).normal(size=(6, 150))  # more points than are worked on at once
    found = band(AlignedCurves(np.arange(150.0), values))
    np.testing.assert_allclose(found.centre, interquartile_mean(values.T))
    for point in (0, 70, 149):
        alone = estimate(values[:, point])
        assert found.low[point] == pytest.approx(alone.interval.low)
        assert found.high[point] == pytest.approx(alone.interval.high)


def test_the_band_of_one_seed_is_unbounded() -> None:
    found = band(align_curves([EARLY]), mean)
    assert found.centre.tolist() == [0.0, 10.0, 30.0]
    assert np.isinf(found.low).all()
    assert np.isinf(found.high).all()


def test_area_is_the_mean_height_over_the_steps_spanned() -> None:
    assert area_under_curve(EARLY) == 12.5  # (10 * 5 + 10 * 20) / 20
    assert area_under_curve(curve([100.0, 110.0, 140.0], [2.0, 2.0, 2.0])) == 2.0
    assert area_under_curve(curve([7.0], [3.0])) == 3.0


def test_steps_to_a_threshold_are_measured_steps_or_never() -> None:
    found = sample_efficiency([EARLY, LATE, curve([], [])], 10.0)
    assert found.steps == (10.0, None, None)
    assert found.reached == 1
    assert found.median is None


def test_the_median_of_steps_to_a_threshold_counts_the_runs_that_never_got_there() -> None:
    assert sample_efficiency([EARLY, LATE], 5.0).steps == (10.0, 25.0)
    assert sample_efficiency([EARLY, LATE], 5.0).median == 10.0  # half of two runs
    assert sample_efficiency([EARLY, LATE, LATE], 5.0).median == 25.0
    assert sample_efficiency([EARLY, EARLY, LATE], 10.0).median == 10.0


def test_steps_to_a_threshold_in_words() -> None:
    assert str(sample_efficiency([EARLY, LATE], 5.0)) == "2 of 2 runs reached 5.00, half of all within 10 env steps"
    assert str(sample_efficiency([EARLY, LATE, LATE], 10.0)) == "1 of 3 runs reached 10.00"


def test_thinning_keeps_both_ends() -> None:
    long = AlignedCurves(np.arange(1_000.0), np.arange(1_000.0)[None])
    thin = long.thinned(5)
    assert thin.steps.tolist() == thin.values[0].tolist() == [0.0, 250.0, 500.0, 749.0, 999.0]
    assert long.thinned(1_000) is long
