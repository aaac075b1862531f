"""Curves over env steps: aligning them at common steps, statistics over seeds, and measures of single curves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.results.statistics import STANDARD, Bootstrap, FloatArray, Statistic, format_score, interquartile_mean

_POINTS_AT_ONCE = 64  # points of a band computed together, because each point holds all its resamples in memory


@dataclass(frozen=True, eq=False)
class Curve:
    """One metric of one run. The steps increase."""

    steps: FloatArray  # [point]
    values: FloatArray  # [point]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, eq=False)
class AlignedCurves:
    """Several curves at the same steps, with NaN before a curve begins and after it ends."""

    steps: FloatArray  # [point]
    values: FloatArray  # [seed, point]

    def common(self) -> "AlignedCurves":
        """Return the part that all curves cover, so that every point has all seeds; it may be empty."""
        shared = np.isfinite(self.values).all(axis=0)
        return AlignedCurves(self.steps[shared], self.values[:, shared])

    def thinned(self, most: int) -> "AlignedCurves":
        """Return the curves at no more than `most` evenly chosen steps, including the first and the last."""
        if len(self.steps) <= most:
            return self
        kept = np.linspace(0, len(self.steps) - 1, most).round().astype(int)
        return AlignedCurves(self.steps[kept], self.values[:, kept])


@dataclass(frozen=True, eq=False)
class Band:
    """A statistic over seeds at every step, with its interval; the interval is infinite with a single seed."""

    steps: FloatArray  # [point]
    centre: FloatArray  # [point]
    low: FloatArray  # [point]
    high: FloatArray  # [point]


@dataclass(frozen=True)
class SampleEfficiency:
    """The number of env steps that each run took to reach a threshold."""

    threshold: float
    steps: tuple[float | None, ...]
    """One entry per run; None if it never reached the threshold."""

    @property
    def reached(self) -> int:
        """Number of runs that reached the threshold."""
        return sum(step is not None for step in self.steps)

    @property
    def median(self) -> float | None:
        """Steps after which half of all runs had reached the threshold; None if fewer than half did."""
        ordered = sorted(np.inf if step is None else step for step in self.steps)
        needed = ordered[(len(ordered) - 1) // 2]
        return None if needed == np.inf else needed

    def __str__(self) -> str:
        reached = f"{self.reached} of {len(self.steps)} runs reached {format_score(self.threshold)}"
        return reached if self.median is None else f"{reached}, half of all within {self.median:,.0f} env steps"


def read_curve(rows: Iterable[Mapping[str, Any]], metric: str) -> Curve:
    """Return a metric from the lines of a metrics file. If a step was logged twice, the later line counts."""
    points = {row["step"]: row[metric] for row in rows if isinstance(row.get(metric), (int, float))}
    steps = sorted(points)
    values = [points[step] for step in steps]
    return Curve(np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64))


def align_curves(curves: Sequence[Curve], *, stepwise: bool = False) -> AlignedCurves:
    """Return the curves at every step that any of them has. Each curve is interpolated only inside its own range.

    Interpolation is linear. With `stepwise`, each value holds until the next one.
    """
    steps = np.unique(np.concatenate([curve.steps for curve in curves])) if curves else np.empty(0)
    values = np.full((len(curves), len(steps)), np.nan)
    for row, curve in zip(values, curves, strict=True):
        if not len(curve):
            continue
        inside = (steps >= curve.steps[0]) & (steps <= curve.steps[-1])
        if stepwise:
            row[inside] = curve.values[np.searchsorted(curve.steps, steps[inside], side="right") - 1]
        else:
            row[inside] = np.interp(steps[inside], curve.steps, curve.values)
    return AlignedCurves(steps, values)


def band(curves: AlignedCurves, statistic: Statistic = interquartile_mean, bootstrap: Bootstrap = STANDARD) -> Band:
    """Compute the statistic over seeds at every step that all curves cover. The bootstrap resamples whole curves."""
    shared = curves.common()
    draws = bootstrap.draws(len(shared.values), 1)[:, :, 0]
    low, high = np.empty_like(shared.steps), np.empty_like(shared.steps)
    for start in range(0, len(shared.steps), _POINTS_AT_ONCE):
        points = slice(start, start + _POINTS_AT_ONCE)
        samples = statistic(shared.values.T[points][:, draws])  # [point, resample]
        low[points], high[points] = bootstrap.bounds(samples, (len(shared.values), 1))
    return Band(shared.steps, statistic(shared.values.T), low, high)


def area_under_curve(curve: Curve) -> float:
    """Return the mean value of the curve over its steps, by the trapezoidal rule."""
    if len(curve) == 1:
        return float(curve.values[0])
    area = np.sum(np.diff(curve.steps) * (curve.values[1:] + curve.values[:-1]) / 2.0)
    return float(area / (curve.steps[-1] - curve.steps[0]))


def sample_efficiency(curves: Sequence[Curve], threshold: float) -> SampleEfficiency:
    """Return the first measured step at which each curve is at or above the threshold."""
    reached = [curve.steps[curve.values >= threshold] for curve in curves]
    return SampleEfficiency(threshold, tuple(float(steps[0]) if len(steps) else None for steps in reached))
