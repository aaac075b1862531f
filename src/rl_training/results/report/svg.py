"""Drawing plots as inline SVG, so that a report needs no plotting package: axes, and curves over env steps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.results.curves import Band, Curve, align_curves
from rl_training.results.report.axes import Axis, linear_axis
from rl_training.results.report.markup import Content, Markup, element
from rl_training.results.statistics import format_score

NUM_COLOURS = 8
"""Number of `--series-N` colours in the stylesheet. Further series reuse the colours with dashed lines."""

_MAX_POINTS = 200  # per line; more would not be visible
_MAX_MARKERS = 30  # curves with at most this many points get markers


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
class Frame:
    """The two axes of a plot and its size in pixels."""

    x: Axis
    y: Axis
    width: float = 520
    height: float = 320
    left: float = 64
    right: float = 16
    top: float = 14
    bottom: float = 52

    @property
    def x_end(self) -> float:
        """The x coordinate of the right end of the x axis."""
        return self.width - self.right

    @property
    def y_end(self) -> float:
        """The y coordinate of the x axis."""
        return self.height - self.bottom

    def place_x(self, value: Any) -> float:
        """Return the x coordinate of a value."""
        return self.left + self.x.share(value) * (self.x_end - self.left)

    def place_y(self, value: Any) -> float:
        """Return the y coordinate of a value."""
        return self.y_end - self.y.share(value) * (self.y_end - self.top)

    def points(self, xs: Iterable[Any], ys: Iterable[Any]) -> list[str]:
        """Return the coordinates of the points, rounded to a tenth of a pixel."""
        return [f"{self.place_x(x):.1f} {self.place_y(y):.1f}" for x, y in zip(xs, ys, strict=True)]


def draw_frame(
    frame: Frame, title: str, description: str, *content: Content, size: str = "", **attributes: str
) -> Markup:
    """Draw a plot with its axes, and a title and a description for screen readers; `size` is a CSS class."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        list(_grid(frame)),
        _label(frame.x.label, x=(frame.left + frame.x_end) / 2, y=frame.height - 8) if frame.x.label else None,
        _label(frame.y.label, x=16, y=(frame.top + frame.y_end) / 2, turned=True) if frame.y.label else None,
        *content,
        class_=f"chart {size}".strip(),
        role="img",
        **attributes,
        viewBox=f"0 0 {frame.width:g} {frame.height:g}",
    )


def draw_chart(chart: Chart) -> Markup:
    """Draw the curves of a chart with its axes."""
    frame = _fit_frame(chart)
    return draw_frame(
        frame,
        chart.title,
        _describe(chart),
        [_draw_series(frame, series) for series in chart.series],
        element("path", class_="pointer"),
        data_steps=f"{frame.x.low:.0f} {frame.x.high:.0f}",
        data_plot=f"{frame.left:g} {frame.x_end:g} {frame.top:g} {frame.y_end:g}",
    )


def series_class(number: int) -> str:
    """Return the CSS classes that give a series its colour and line style."""
    return f"series-{number % NUM_COLOURS}" + (" dashed" if number >= NUM_COLOURS else "")


def _fit_frame(chart: Chart) -> Frame:
    curves = [curve for series in chart.series for curve in (*series.seeds, *series.others)]
    steps = [float(step) for curve in curves for step in (curve.steps[0], curve.steps[-1])]
    values = [float(value) for curve in curves for value in (curve.values.min(), curve.values.max())]
    return Frame(
        linear_axis("env steps", min(0.0, *steps), max(steps)),
        linear_axis("return", min(values), max(values), room=0.04),
    )


def _grid(frame: Frame) -> Iterator[Markup]:
    for value, text in frame.y.ticks:
        y = f"{frame.place_y(value):.1f}"
        yield element("path", class_="grid", d=f"M{frame.left:g} {y}H{frame.x_end:g}")
        yield element("text", text, class_="tick value", x=f"{frame.left - 8:g}", y=y, dy="0.35em")
    for value, text in frame.x.ticks:
        x = f"{frame.place_x(value):.1f}"
        yield element("path", class_="grid", d=f"M{x} {frame.y_end:g}v5")
        yield element("text", text, class_="tick", x=x, y=f"{frame.y_end + 20:g}")
    yield element("path", class_="axis", d=f"M{frame.left:g} {frame.top:g}V{frame.y_end:g}H{frame.x_end:g}")


def _label(text: str, *, x: float, y: float, turned: bool = False) -> Markup:
    turn = f"rotate(-90 {x:g} {y:g})" if turned else None
    return element("text", text, class_="label", x=f"{x:g}", y=f"{y:g}", transform=turn)


def _draw_series(frame: Frame, series: Series) -> Markup:
    centre = series.centre
    parts = [element("path", class_="seed", d=_line(frame, curve)) for curve in series.seeds if len(series.seeds) > 1]
    parts += [element("path", class_="seed other", d=_line(frame, curve)) for curve in series.others]
    if len(centre.steps):
        if len(series.seeds) > 1:
            edge = [*frame.points(centre.steps, centre.high), *frame.points(centre.steps, centre.low)[::-1]]
            parts.insert(0, element("path", class_="band", d=f"M{'L'.join(edge)}Z"))
        points = frame.points(centre.steps, centre.centre)
        parts.append(element("path", class_="centre", d=_path(points), data_points=_points_text(centre)))
        if len(points) <= _MAX_MARKERS:
            parts.append(element("path", class_="marks", d="".join(f"M{point}h0" for point in points)))
    return element("g", parts, class_=series_class(series.number), data_label=series.label)


def _points_text(centre: Band) -> str:
    """Return steps and values as text, for the script that shows the values under the pointer."""
    return " ".join(f"{step:.0f},{value:.5g}" for step, value in zip(centre.steps, centre.centre, strict=True))


def _line(frame: Frame, curve: Curve) -> str:
    thinned = align_curves([curve]).thinned(_MAX_POINTS)
    return _path(frame.points(thinned.steps, thinned.values[0]))


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
