"""Plots of the trials of a study.

Every mark of a trial has the attribute `data-trial`, so that pointing at one shows the same trial in all plots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rl_training.results.report.axes import Axis, linear_axis, parameter_axis, step_axis
from rl_training.results.report.markup import Markup, element
from rl_training.results.report.study_model import Confirmation, ConfirmedSide, StudyReport, TrialPart
from rl_training.results.report.svg import Frame, draw_frame
from rl_training.results.statistics import format_score

NUM_TONES = 8
"""Number of `--tone-N` colours in the stylesheet, from the worst trials to the best."""

_LONGEST_NAME = 24  # characters of a parameter above its axis
_AXIS_SPACING = 92.0
_MANY = 100  # if there are more trials than this, marks are smaller
_SPREAD = 0.5  # the fraction of a value's room over which its trials are spread
_GOLDEN = 0.6180339887  # multiples of the golden ratio are spread evenly
_WIDEST = 1100.0  # width of the parallel coordinates, unless there are many parameters


def draw_rungs(report: StudyReport) -> Markup:
    """Draw the value of each trial at every rung that it has reached."""
    trials, budgets = _in_order(report), report.settings.budgets
    frame = Frame(step_axis("env steps", budgets), _value_axis(report, report.metric))
    lines = [_trial_line(report, trial, frame.points(budgets[: trial.rung], trial.values)) for trial in trials]
    reached = [sum(trial.rung > rung for trial in trials) for rung in range(len(budgets))]
    words = [f"{count} trials at {budget:,} env steps" for count, budget in zip(reached, budgets, strict=True)]
    return draw_frame(frame, "Values by rung", "; ".join(words) + ".", lines, size=_density(report))


def draw_history(report: StudyReport) -> Markup:
    """Draw the value of each trial at the first rung, in the order of the trials, and the best so far."""
    trials = _in_order(report)
    numbers = linear_axis("trial", 0, max(len(report.trials) - 1, 1), room=0.03)
    whole = tuple(tick for tick in numbers.ticks if tick[0] == round(tick[0]))
    frame = Frame(replace(numbers, ticks=whole), _value_axis(report, report.metric, rungs=1))
    line, best = "", -float("inf")
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.values[0] > best:
            best = trial.values[0]
            x, y = frame.place_x(trial.number), frame.place_y(best)
            line += f"H{x:.1f}V{y:.1f}" if line else f"M{x:.1f} {y:.1f}"
    path = element("path", class_="record", d=f"{line}H{frame.x_end:g}")
    dots = [_trial_line(report, trial, frame.points([trial.number], trial.values[:1])) for trial in trials]
    words = f"Best value at the first rung: {format_score(best)}."
    return draw_frame(frame, "Values in the order of the trials", words, path, dots, size=_density(report))


def draw_slice(report: StudyReport, name: str) -> Markup:
    """Draw the values of all trials at the first rung over one parameter."""
    trials = [trial for trial in _in_order(report) if name in trial.params]
    axis = parameter_axis("", report.space.parameters[name], [trial.params[name] for trial in trials])
    values = _value_axis(report, "", rungs=1, most=4)
    frame = Frame(axis, values, width=300, height=190, left=46, right=12, top=10, bottom=32)
    dots = [_trial_line(report, trial, [_slice_point(frame, trial, name)]) for trial in trials]
    words = f"Values of {len(trials)} trials over {name}."
    start = _start_line(frame, report.start.get(name))
    return draw_frame(frame, name, words, start, dots, size=f"small {_density(report)}".strip())


def _slice_point(frame: Frame, trial: TrialPart, name: str) -> str:
    """Return the place of a trial. Trials with the same value are spread sideways, so that all are visible."""
    spread = _SPREAD * frame.x.slot * ((trial.number * _GOLDEN) % 1.0 - 0.5) * (frame.x_end - frame.left)
    return f"{frame.place_x(trial.params[name]) + spread:.1f} {frame.place_y(trial.values[0]):.1f}"


def _start_line(frame: Frame, value: Any) -> Markup | None:
    """Mark the value of the starting config, if the axis contains it."""
    try:
        x = frame.x.transform(value["start"] if isinstance(value, dict) else value)
    except (KeyError, TypeError, ValueError):
        return None
    if not frame.x.low <= x <= frame.x.high:
        return None
    place = frame.left + (x - frame.x.low) / (frame.x.high - frame.x.low) * (frame.x_end - frame.left)
    return element("path", class_="start", d=f"M{place:.1f} {frame.top:g}V{frame.y_end:g}")


def draw_parallel(report: StudyReport) -> Markup:
    """Draw one axis per parameter and one for the value, and a line per trial that is coloured by its rank."""
    names = list(report.space.parameters)
    trials = [trial for trial in report.ranked if all(name in trial.params for name in names)]
    axes = [
        parameter_axis(name, report.space.parameters[name], [trial.params[name] for trial in trials]) for name in names
    ]
    axes.append(_value_axis(report, report.metric, rungs=1))
    spacing = max(_AXIS_SPACING, min(_WIDEST / len(axes), 2.0 * _AXIS_SPACING))
    frames = [_parallel_frame(axis, spacing, index) for index, axis in enumerate(axes)]
    lines = [
        _parallel_line(report, frames, [*(trial.params[name] for name in names), trial.values[0]], trial, rank)
        for rank, trial in enumerate(trials)
    ]
    best = [line for line, trial in zip(lines, trials, strict=True) if trial is report.best]
    width, height = spacing * len(axes), frames[0].height
    return element(
        "svg",
        element("title", "Parallel coordinates"),
        element("desc", f"{len(trials)} trials as lines through {', '.join(names)} and the value."),
        [line for line in lines if line not in best],
        best,
        [list(_parallel_axis(frame, index)) for index, frame in enumerate(frames)],
        class_=f"chart wide {_density(report)}".strip(),
        role="img",
        width=f"{width:g}",
        height=f"{height:g}",
        viewBox=f"0 0 {width:g} {height:g}",
    )


def _parallel_frame(axis: Axis, spacing: float, index: int) -> Frame:
    x = (index + 0.5) * spacing
    return Frame(axis, axis, width=x, height=340, left=x, right=0, top=44, bottom=16)


def _parallel_line(
    report: StudyReport, frames: Sequence[Frame], values: Sequence[Any], trial: TrialPart, rank: int
) -> Markup:
    points = [f"{frame.left:.1f} {frame.place_y(value):.1f}" for frame, value in zip(frames, values, strict=True)]
    tone = NUM_TONES * rank // max(len(report.ranked), 1)
    kind = "best" if trial is report.best else f"tone-{tone}"
    return element("path", class_=f"parallel {kind}", d=f"M{'L'.join(points)}", data_trial=trial.number)


def _parallel_axis(frame: Frame, index: int) -> Iterator[Markup]:
    """Draw one of the vertical axes. Names alternate between two heights, so that they do not touch."""
    x, label = frame.left, frame.y.label
    yield element("path", class_="axis", d=f"M{x:.1f} {frame.top:g}V{frame.y_end:g}")
    name = label if len(label) <= _LONGEST_NAME else label[: _LONGEST_NAME - 1] + "…"
    yield element("text", name, class_="name", x=f"{x:.1f}", y=14 if index % 2 else 32)
    for value, text in frame.y.ticks:
        y = f"{frame.place_y(value):.1f}"
        yield element("path", class_="axis", d=f"M{x:.1f} {y}h4")
        yield element("text", text, class_="tick halo", x=f"{x + 7:.1f}", y=y, dy="0.35em")


def draw_confirmation(confirmation: Confirmation, label: str, searched: float | None) -> Markup:
    """Draw the result of every new seed of both configs, and the value that the best trial had in the search."""
    sides = {"B": confirmation.best, "A": confirmation.start}
    scores = [score for side in sides.values() for score in side.scores]
    every = [*scores, *([] if searched is None else [searched])]
    rows = Axis(
        "", 0.0, 2.0, (("B", f"B: {confirmation.trial_name}"), ("A", "A: start")), {"B": 0.5, "A": 1.5}.__getitem__
    )
    frame = Frame(linear_axis(label, min(every), max(every), room=0.05), rows, height=170, left=110, bottom=50)
    marks = [_draw_side(frame, name, side) for name, side in sides.items()]
    if searched is not None:
        x, y = frame.place_x(searched), frame.place_y("B")
        marks.append(element("path", class_="searched", d=f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z"))
    words = [f"{name}: {', '.join(map(format_score, side.scores))}" for name, side in sides.items()]
    return draw_frame(frame, "Results on new seeds", "; ".join(words) + ".", marks)


def _draw_side(frame: Frame, row: str, side: ConfirmedSide) -> Markup:
    y, middle = frame.place_y(row), frame.place_x(side.iqm.value)
    ends = side.iqm.interval
    parts = [element("path", class_="middle", d=f"M{middle:.1f} {y - 16:.1f}v32")]
    if ends.is_bounded:
        low, high = frame.place_x(ends.low), frame.place_x(ends.high)
        parts.insert(0, element("path", class_="reach", d=f"M{low:.1f} {y:.1f}H{high:.1f}"))
    dots = "".join(f"M{point}h0" for point in frame.points(side.scores, [row] * len(side.scores)))
    return element("g", parts, element("path", class_="dots", d=dots), class_="side-b" if row == "B" else "side-a")


def _in_order(report: StudyReport) -> list[TrialPart]:
    """Return the trials with a value as they are drawn: the best last, and promoted ones after others."""
    return sorted(report.ranked, key=lambda trial: (trial is report.best, trial.rung))


def _value_axis(report: StudyReport, label: str, *, rungs: int | None = None, most: int = 6) -> Axis:
    """Return an axis that contains the values at the first `rungs` rungs, or at all rungs."""
    values = [value for trial in report.ranked for value in trial.values[:rungs]]
    return linear_axis(label, min(values), max(values), room=0.06, most=most)


def _density(report: StudyReport) -> str:
    """Return the CSS class for plots of many trials."""
    return "many" if len(report.ranked) > _MANY else ""


def trial_kind(report: StudyReport, trial: TrialPart) -> str:
    """Return the CSS class that gives the marks of a trial their colour."""
    return "best" if trial is report.best else "promoted" if trial.is_promoted else "paused"


def _trial_line(report: StudyReport, trial: TrialPart, points: Sequence[str]) -> Markup:
    """Draw a line with a dot at every point."""
    line = [element("path", class_="line", d=f"M{'L'.join(points)}")] if len(points) > 1 else []
    dots = element("path", class_="dots", d="".join(f"M{point}h0" for point in points))
    return element("g", line, dots, class_=f"trial {trial_kind(report, trial)}", data_trial=trial.number)
