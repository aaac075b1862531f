"""Plots of curves over env steps, of a single run or of groups with the spread over their seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.experiment.files import write_atomically
from rl_training.experiment.metrics import EVALUATION, TRAINING
from rl_training.experiment.runs import CURVE_FILE, RunContext, read_metadata, read_metrics
from rl_training.results.curves import align_curves, band, read_curve
from rl_training.results.loading import RunGroup
from rl_training.results.statistics import Bootstrap, format_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
_METRIC_LABELS = {EVALUATION: "evaluation return", TRAINING: "training return"}
_STYLES = [(f"C{colour}", line) for line in ("-", "--", ":", "-.") for colour in range(10)]
_MAX_SEED_LINES = 10  # groups with more seeds than this show only the band
_MAX_POINTS = 200  # per band; more would not be visible
_MAX_MARKERS = 30  # curves with at most this many points get markers
_BAND = Bootstrap(resamples=2_000)


def plot_run(context: RunContext) -> Path | None:
    """Draw the learning curve of a run, with algorithm, environment and seed as its title.

    Return None if matplotlib is not installed.
    """
    metadata = read_metadata(context)
    return plot_learning_curve(context, f"{metadata['algo']} on {metadata['env_id']}, seed {metadata['seed']}")


def plot_learning_curve(context: RunContext, title: str) -> Path | None:
    """Draw training and evaluation returns of a run over env steps. Return None if matplotlib is not installed."""
    try:
        figure, axes = _make_figure(title, "return")
    except ModuleNotFoundError:
        return None
    rows = read_metrics(context)
    training, evaluation = read_curve(rows, TRAINING), read_curve(rows, EVALUATION)
    if len(training):
        axes.plot(training.steps, training.values, color="C0", label="training, mean of 100 episodes")
    if len(evaluation):
        spread = read_curve(rows, "eval/std_reward")
        deviations = np.interp(evaluation.steps, spread.steps, spread.values) if len(spread) else None
        axes.errorbar(
            evaluation.steps,
            evaluation.values,
            deviations,
            color="C1",
            marker="o",
            markersize=4.0,
            capsize=2.0,
            label="evaluation",
        )
    path = context.run_dir / CURVE_FILE
    save_figure(_add_legend(figure), path)
    return path


def plot_groups(
    groups: Sequence[RunGroup], path: Path, *, metric: str = EVALUATION, threshold: float | None = None
) -> None:
    """Write one plot with a curve for each group. The suffix of the path decides the format."""
    if path.suffix[1:] not in FORMATS:
        raise ConfigError(f"{path}: give a name that ends with one of {', '.join(f'.{name}' for name in FORMATS)}")
    save_figure(draw_groups(groups, metric, threshold), path)


def draw_groups(groups: Sequence[RunGroup], metric: str = EVALUATION, threshold: float | None = None) -> "Figure":
    """Draw the interquartile mean over the seeds of each group with its interval, and each seed if there are few."""
    envs = sorted({group.env_id for group in groups})
    if len(envs) > 1:
        raise RunDirectoryError(f"runs on {', '.join(envs)}: make a plot for each environment")
    title = f"{envs[0]}: interquartile mean over seeds, {100 * _BAND.confidence:g} % interval shaded"
    try:
        figure, axes = _make_figure(title, _METRIC_LABELS.get(metric, metric))
    except ModuleNotFoundError:
        raise ConfigError("plots need an extra: pip install 'rl-training[plots]'") from None
    for index, group in enumerate(groups):
        _draw_group(axes, group, metric, _STYLES[index % len(_STYLES)])
    if threshold is not None:
        label = f"threshold {format_score(threshold)}"
        axes.axhline(threshold, color="0.4", linestyle=(0, (6, 3)), linewidth=1.0, label=label)
    return _add_legend(figure)


def _draw_group(axes: "Axes", group: RunGroup, metric: str, style: tuple[str, str]) -> None:
    colour, line = style
    curves = [curve for curve in group.curves(metric) if len(curve)]
    if not curves:
        known = sorted({name for run in group.runs for row in run.rows for name in row} - {"step", "time"})
        choice = f"choose from {', '.join(known)}" if known else "nothing was logged"
        raise ConfigError(f"{group.label} has no metric '{metric}': {choice}")
    found = band(align_curves(curves).common().thinned(_MAX_POINTS), bootstrap=_BAND)
    label = f"{group.label} (n = {len(curves)})"
    marker = "o" if len(found.steps) <= _MAX_MARKERS else None
    axes.plot(found.steps, found.centre, color=colour, linestyle=line, marker=marker, markersize=3.0, label=label)
    if len(curves) > 1:
        axes.fill_between(found.steps, found.low, found.high, color=colour, alpha=0.2, linewidth=0.0)
        for curve in curves if len(curves) <= _MAX_SEED_LINES else ():
            axes.plot(curve.steps, curve.values, color=colour, linestyle=line, linewidth=0.6, alpha=0.5)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write the figure in the format given by the suffix of the path."""
    try:
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=120))
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be written: {error.strerror}") from None


def _make_figure(title: str, quantity: str) -> "tuple[Figure, Axes]":
    """Create a figure without pyplot, so that no global state changes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="env steps", ylabel=quantity, title=title)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    return figure, axes


def _add_legend(figure: "Figure") -> "Figure":
    """Add a legend below the axes, where it hides no curve."""
    if figure.axes[0].get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure
