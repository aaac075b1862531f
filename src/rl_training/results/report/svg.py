"""Curves over env steps as inline SVG, written here so that a report needs no plotting package."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rl_training.results.curves import Band, Curve, align_curves
from rl_training.results.report.markup import Markup, element
from rl_training.results.statistics import FloatArray, short

NUM_COLOURS = 8
"""As many `--series-N` colours has the stylesheet; more series share them and are dashed."""

_WIDTH, _HEIGHT = 520, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 52
_MOST_POINTS = 200  # of a line; more would not show
_FEW_POINTS = 30  # of a curve that is short enough to mark each
_TICKS = 6
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, eq=False)
class Series:
    """The curve of one group: the statistic over its seeds, with a band if there are several, and each seed thinly."""

    label: str
    number: int
    """Which of the groups it is; decides the colour."""
    centre: Band
    seeds: tuple[Curve, ...]
    others: tuple[Curve, ...] = ()
    """Of runs that are shown but not counted, because they have not finished."""


@dataclass(frozen=True, eq=False)
class Chart:
    """One picture of returns: what they are, and the series in it."""

    title: str
    about: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class _Axes:
    """Where numbers lie in the picture."""

    steps: tuple[float, float]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        """The place of an env step."""
        return _LEFT + (step - self.steps[0]) / (self.steps[1] - self.steps[0]) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.values[0]) / (self.values[1] - self.values[0])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def points(self, steps: FloatArray, values: FloatArray) -> list[str]:
        """Coordinates of the points, rounded to what can be seen."""
        return [f"{self.x(step):.1f} {self.y(value):.1f}" for step, value in zip(steps, values, strict=True)]


def draw_chart(chart: Chart) -> Markup:
    """The picture with its axes; its words say the same to whoever cannot see it."""
    axes = _axes_of(chart)
    return element(
        "svg",
        element("title", chart.title),
        element("desc", _described(chart)),
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
    """The classes that give a series its colour and its kind of line."""
    return f"series-{number % NUM_COLOURS}" + (" dashed" if number >= NUM_COLOURS else "")


def nice_ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Up to one more than `most` round numbers between the ends: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if factor * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def compact(value: float) -> str:
    """A number for an axis: 20k, 1.5M, -200, 0.25."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:.4g}"


def _axes_of(chart: Chart) -> _Axes:
    curves = [curve for series in chart.series for curve in (*series.seeds, *series.others)]
    steps = [float(step) for curve in curves for step in (curve.steps[0], curve.steps[-1])]
    values = [float(value) for curve in curves for value in (curve.values.min(), curve.values.max())]
    return _Axes(_widened(min(0.0, *steps), max(steps), 0.0), _widened(min(values), max(values), 0.04))


def _widened(low: float, high: float, share: float) -> tuple[float, float]:
    """The ends moved apart, so that what lies on them is seen, and that they differ."""
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
        parts.append(element("path", class_="centre", d=_path(points), data_points=_plain(centre)))
        if len(points) <= _FEW_POINTS:
            parts.append(element("path", class_="marks", d="".join(f"M{point}h0" for point in points)))
    return element("g", parts, class_=series_class(series.number), data_label=series.label)


def _plain(centre: Band) -> str:
    """Steps and values for whoever points at the curve."""
    return " ".join(f"{step:.0f},{value:.5g}" for step, value in zip(centre.steps, centre.centre, strict=True))


def _line(axes: _Axes, curve: Curve) -> str:
    thinned = align_curves([curve]).thinned(_MOST_POINTS)
    return _path(axes.points(thinned.steps, thinned.values[0]))


def _path(points: Sequence[str]) -> str:
    """A line through the points; a single one is a dot, since lines have round ends."""
    return f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h0"


def _described(chart: Chart) -> str:
    return "; ".join(_ends(chart.series)) + "."


def _ends(series: Iterable[Series]) -> Iterator[str]:
    for each in series:
        if len(each.centre.steps):
            value, step = each.centre.centre[-1], each.centre.steps[-1]
            yield f"{each.label}: {short(float(value))} at {step:,.0f} env steps, {len(each.seeds)} runs"
        else:
            yield f"{each.label}: no step that all runs have in common"
