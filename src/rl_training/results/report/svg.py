"""Drawing curves over env steps as inline SVG, so that a report needs no plotting package."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rl_training.results.curves import Band, Curve, align_curves
from rl_training.results.report.markup import Markup, element
from rl_training.results.statistics import FloatArray, format_score

NUM_COLOURS = 8
"""Number of `--series-N` colours in the stylesheet. Further series reuse the colours with dashed lines."""

_WIDTH, _HEIGHT = 520, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 52
_MAX_POINTS = 200  # per line; more would not be visible
_MAX_MARKERS = 30  # curves with at most this many points get markers
_TICKS = 6
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, eq=False)
class Series:
    """The curves of one group: the statistic over its seeds, its interval as a band, and a thin line per seed."""

    label: str
    number: int
    """Number of the group, which decides the colour."""
    centre: Band
    seeds: tuple[Curve, ...]
    others: tuple[Curve, ...] = ()
    """Curves of unfinished runs, which are shown but not counted."""


@dataclass(frozen=True, eq=False)
class Chart:
    """One chart of returns over env steps."""

    title: str
    about: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class _Axes:
    """The ranges of the axes, and the conversion from numbers to coordinates."""

    steps: tuple[float, float]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        """Return the x coordinate of an env step."""
        return _LEFT + (step - self.steps[0]) / (self.steps[1] - self.steps[0]) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        share = (value - self.values[0]) / (self.values[1] - self.values[0])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def points(self, steps: FloatArray, values: FloatArray) -> list[str]:
        """Return the coordinates of the points, rounded to a tenth of a pixel."""
        return [f"{self.x(step):.1f} {self.y(value):.1f}" for step, value in zip(steps, values, strict=True)]


def draw_chart(chart: Chart) -> Markup:
    """Draw the chart with its axes, and a description for screen readers."""
    axes = _fit_axes(chart)
    return element(
        "svg",
        element("title", chart.title),
        element("desc", _describe(chart)),
        list(_grid(axes)),
        _label("env steps", x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 8),
        _label("return", x=16, y=(_TOP + _HEIGHT - _BOTTOM) / 2, turned=True),
        [_draw_series(axes, series) for series in chart.series],
        element("path", class_="pointer"),
        class_="chart",
        role="img",
        data_steps=f"{axes.steps[0]:.0f} {axes.steps[1]:.0f}",
        data_plot=f"{_LEFT} {_WIDTH - _RIGHT} {_TOP} {_HEIGHT - _BOTTOM}",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
    )


def series_class(number: int) -> str:
    """Return the CSS classes that give a series its colour and line style."""
    return f"series-{number % NUM_COLOURS}" + (" dashed" if number >= NUM_COLOURS else "")


def nice_ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Return up to `most` + 1 round numbers from `low` to `high`: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if factor * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def compact(value: float) -> str:
    """Format a number for an axis, such as 20k, 1.5M, -200 or 0.25."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:.4g}"


def _fit_axes(chart: Chart) -> _Axes:
    curves = [curve for series in chart.series for curve in (*series.seeds, *series.others)]
    steps = [float(step) for curve in curves for step in (curve.steps[0], curve.steps[-1])]
    values = [float(value) for curve in curves for value in (curve.values.min(), curve.values.max())]
    return _Axes(_widen(min(0.0, *steps), max(steps), 0.0), _widen(min(values), max(values), 0.04))


def _widen(low: float, high: float, share: float) -> tuple[float, float]:
    """Widen the range, so that points at its ends are visible and the ends differ."""
    room = share * (high - low) if high > low else max(abs(high), 1.0) * 0.1
    return low - room, high + room


def _grid(axes: _Axes) -> Iterator[Markup]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in nice_ticks(*axes.values):
        y = f"{axes.y(value):.1f}"
        yield element("path", class_="grid", d=f"M{_LEFT} {y}H{right}")
        yield element("text", compact(value), class_="tick value", x=_LEFT - 8, y=y, dy="0.35em")
    for step in nice_ticks(*axes.steps):
        yield element("path", class_="grid", d=f"M{axes.x(step):.1f} {bottom}v5")
        yield element("text", compact(step), class_="tick", x=f"{axes.x(step):.1f}", y=bottom + 20)
    yield element("path", class_="axis", d=f"M{_LEFT} {_TOP}V{bottom}H{right}")


def _label(text: str, *, x: float, y: float, turned: bool = False) -> Markup:
    turn = f"rotate(-90 {x:g} {y:g})" if turned else None
    return element("text", text, class_="label", x=f"{x:g}", y=f"{y:g}", transform=turn)


def _draw_series(axes: _Axes, series: Series) -> Markup:
    centre = series.centre
    parts = [element("path", class_="seed", d=_line(axes, curve)) for curve in series.seeds if len(series.seeds) > 1]
    parts += [element("path", class_="seed other", d=_line(axes, curve)) for curve in series.others]
    if len(centre.steps):
        if len(series.seeds) > 1:
            edge = [*axes.points(centre.steps, centre.high), *axes.points(centre.steps, centre.low)[::-1]]
            parts.insert(0, element("path", class_="band", d=f"M{'L'.join(edge)}Z"))
        points = axes.points(centre.steps, centre.centre)
        parts.append(element("path", class_="centre", d=_path(points), data_points=_points_text(centre)))
        if len(points) <= _MAX_MARKERS:
            parts.append(element("path", class_="marks", d="".join(f"M{point}h0" for point in points)))
    return element("g", parts, class_=series_class(series.number), data_label=series.label)


def _points_text(centre: Band) -> str:
    """Return steps and values as text, for the script that shows the values under the pointer."""
    return " ".join(f"{step:.0f},{value:.5g}" for step, value in zip(centre.steps, centre.centre, strict=True))


def _line(axes: _Axes, curve: Curve) -> str:
    thinned = align_curves([curve]).thinned(_MAX_POINTS)
    return _path(axes.points(thinned.steps, thinned.values[0]))


def _path(points: Sequence[str]) -> str:
    """Return a path through the points. A single point becomes a dot, because lines have round ends."""
    return f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h0"


def _describe(chart: Chart) -> str:
    return "; ".join(_describe_series(chart.series)) + "."


def _describe_series(series: Iterable[Series]) -> Iterator[str]:
    for each in series:
        if len(each.centre.steps):
            value, step = each.centre.centre[-1], each.centre.steps[-1]
            yield f"{each.label}: {format_score(float(value))} at {step:,.0f} env steps, {len(each.seeds)} runs"
        else:
            yield f"{each.label}: the runs have no step in common"
