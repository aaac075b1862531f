"""Curves as SVG: where ticks lie, that everything lies inside the picture, and what it says without being seen."""

import re
import xml.etree.ElementTree

import numpy as np
import pytest

from rl_training.results.curves import Band, Curve, align_curves, band
from rl_training.results.report.axes import compact, nice_ticks
from rl_training.results.report.svg import NUM_COLOURS, Chart, Series, draw_chart, series_class


def make_series(*curves: list[float], number: int = 0) -> Series:
    found = tuple(Curve(np.arange(1.0, len(values) + 1.0) * 1_000.0, np.array(values)) for values in curves)
    return Series(f"group {number}", number, band(align_curves(found)), found)


def parsed(*series: Series) -> xml.etree.ElementTree.Element:
    return xml.etree.ElementTree.fromstring(draw_chart(Chart("Return", "of something", series)))


def paths(picture: xml.etree.ElementTree.Element, kind: str) -> list[str]:
    return [path.attrib["d"] for path in picture.iter("path") if kind in path.attrib["class"].split()]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 98_304.0, [0.0, 20_000.0, 40_000.0, 60_000.0, 80_000.0]),
        (-1_390.0, -140.0, [-1_250.0, -1_000.0, -750.0, -500.0, -250.0]),
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_ticks_are_round_numbers_inside_the_range(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_numbers_on_axes_are_short() -> None:
    assert [compact(value) for value in (0.0, 0.25, -200.0, 20_000.0, 1_500_000.0)] == [
        "0",
        "0.25",
        "-200",
        "20k",
        "1.5M",
    ]


def test_every_group_has_a_centre_a_band_and_its_seeds_inside_the_picture() -> None:
    picture = parsed(make_series([1.0, 5.0], [2.0, 900.0]), make_series([-50.0, 3.0], [0.0, 3.0], number=1))
    assert [len(paths(picture, kind)) for kind in ("centre", "band", "seed")] == [2, 2, 4]
    width, height = (float(size) for size in picture.attrib["viewBox"].split()[2:])
    for path in paths(picture, "centre") + paths(picture, "band") + paths(picture, "seed"):
        numbers = [tuple(map(float, pair)) for pair in re.findall(r"([-\d.]+) ([-\d.]+)", path)]
        assert len(numbers) >= 2
        assert all(0.0 <= x <= width and 0.0 <= y <= height for x, y in numbers)


def test_one_run_is_a_line_without_a_band_and_one_evaluation_a_dot() -> None:
    picture = parsed(make_series([1.0, 2.0, 3.0]))
    assert [len(paths(picture, kind)) for kind in ("centre", "band", "seed")] == [1, 0, 0]
    (dot,) = paths(parsed(make_series([7.0])), "centre")
    assert dot.endswith("h0")


def test_a_long_curve_is_thinned_to_what_can_be_seen() -> None:
    (line, _) = paths(parsed(make_series([float(number % 7) for number in range(5_000)], [0.0] * 5_000)), "seed")
    assert line.count("L") == 199


def test_runs_that_are_not_counted_are_drawn_apart_and_may_be_alone() -> None:
    nothing = np.empty(0)
    curve = Curve(np.array([1_000.0, 2_000.0]), np.array([1.0, 2.0]))
    picture = parsed(Series("group", 0, Band(nothing, nothing, nothing, nothing), (), (curve,)))
    assert (len(paths(picture, "other")), len(paths(picture, "centre"))) == (1, 0)


def test_the_picture_says_in_words_where_its_curves_end() -> None:
    picture = parsed(make_series([1.0, 5.0], [3.0, 7.0]))
    assert picture.findtext("desc") == "group 0: 6.00 at 2,000 env steps, 2 runs."


def test_groups_beyond_the_colours_share_them_and_are_dashed() -> None:
    assert series_class(0) == "series-0"
    assert series_class(NUM_COLOURS) == "series-0 dashed"
