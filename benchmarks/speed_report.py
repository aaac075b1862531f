"""The report of the speed benchmark: medians and ratios, tables, targets, charts and a page."""

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speed_common import ROWS, SIDE_NAMES, Measurement, Report, Row, Side

TARGETS: dict[Side, dict[str, float]] = {
    "eager": {"A1": 3.0, "A2": 2.0, "B": 2.5, "C": 1.3},
    "compiled": {"A1": 5.0, "A2": 4.0, "B": 5.0, "C": 2.5, "D": 2.5, "E": 2.0, "F": 2.0},
    "bfloat16": {"E": 2.0, "F": 2.0},
}
"""The ratio to Stable-Baselines3 that each row should reach."""
MEMORY_TARGETS: dict[str, float] = {"F": 0.5}
"""The share of Stable-Baselines3's peak memory that a row with a full replay buffer should not exceed."""
TOLERANCE = 0.05
"""How much lower our return may be, as a share of Stable-Baselines3's absolute return."""


@dataclass(frozen=True)
class Ratio:
    """Our speed divided by that of Stable-Baselines3, over all rounds."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Summary:
    """Medians over the rounds, with the number of threads that is fastest for this side."""

    threads: int
    wall: float
    """Env steps per second of wall time."""
    cpu: float
    """Env steps per second of CPU time."""
    import_seconds: float
    warmup_seconds: float
    longest_warmup_seconds: float
    peak_memory_mb: float
    episode_return: float | None
    """The mean over all runs, with any number of threads."""
    return_error: float
    """The standard error of that mean; 0 for a single run."""
    runs: int
    ratio: Ratio | None
    counts: bool
    """Whether this side learns as well as Stable-Baselines3; True if that is not judged."""


def row_named(name: str) -> Row:
    """Return the row with this name."""
    return next(row for row in ROWS if row.name == name)


def summarise(report: Report, name: str) -> dict[Side, Summary]:
    """Summarise every side of a row."""
    by_side: dict[Side, list[Measurement]] = {}
    for each in report.measurements:
        if each.row == name:
            by_side.setdefault(each.side, []).append(each)
    baseline = by_side.get("sb3", [])
    return {side: _summarise_side(report, by_side[side], baseline) for side in SIDE_NAMES if side in by_side}


def _summarise_side(report: Report, taken: list[Measurement], baseline: list[Measurement]) -> Summary:
    row, side = row_named(taken[0].row), taken[0].side
    best, is_baseline = at_best_threads(row, taken), side == "sb3"
    returns = report.returns(row.name, side)
    judged = report.steps_scale >= 1.0 and not is_baseline
    return Summary(
        threads=best[0].threads,
        wall=statistics.median(each.steps_per_wall_second for each in best),
        cpu=statistics.median(each.steps_per_cpu_second for each in best),
        import_seconds=statistics.median(each.import_seconds for each in best),
        warmup_seconds=statistics.median(each.warmup_seconds for each in best),
        longest_warmup_seconds=max(each.warmup_seconds for each in taken),
        peak_memory_mb=statistics.median(each.peak_memory_mb for each in best),
        episode_return=statistics.fmean(returns) if returns else None,
        return_error=_standard_error(returns),
        runs=len(returns),
        ratio=None if is_baseline or not baseline else compare(row, best, at_best_threads(row, baseline)),
        counts=not judged or learns_as_well(returns, report.returns(row.name, "sb3")),
    )


def _standard_error(sample: Sequence[float]) -> float:
    return statistics.stdev(sample) / math.sqrt(len(sample)) if len(sample) > 1 else 0.0


def _speed(row: Row, each: Measurement) -> float:
    return each.steps_per_wall_second if row.by == "wall" else each.steps_per_cpu_second


def at_best_threads(row: Row, taken: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements with the number of threads that has the highest median speed."""
    by_threads: dict[int, list[Measurement]] = {}
    for each in taken:
        by_threads.setdefault(each.threads, []).append(each)
    return max(by_threads.values(), key=lambda rounds: statistics.median(_speed(row, each) for each in rounds))


def compare(row: Row, ours: Sequence[Measurement], theirs: Sequence[Measurement]) -> Ratio | None:
    """Return the median, lowest and highest ratio over the rounds; None if no round has both sides."""
    baseline = {each.round: _speed(row, each) for each in theirs}
    ratios = [_speed(row, each) / baseline[each.round] for each in ours if each.round in baseline]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def learns_as_well(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether our mean return is above theirs, or lower by at most the tolerance or two standard errors."""
    if not ours or not theirs:
        return True
    missing = statistics.fmean(theirs) - statistics.fmean(ours)
    error = math.hypot(_standard_error(ours), _standard_error(theirs))
    return missing <= max(TOLERANCE * abs(statistics.fmean(theirs)), 2.0 * error)


def missed_targets(report: Report) -> list[str]:
    """Return one line for each target that a measured row misses."""
    missed: list[str] = []
    for name in report.row_names():
        summaries = summarise(report, name)
        for side, targets in TARGETS.items():
            target, summary = targets.get(name), summaries.get(side)
            if target is None:
                continue
            if summary is None or summary.ratio is None:
                missed.append(f"{name} {side}: not measured, the target is {target:g}")
            elif not summary.counts:
                missed.append(f"{name} {side}: learns less than SB3, so its ratio does not count")
            elif summary.ratio.median < target:
                line = f"{name} {side}: {summary.ratio.median:.2f} times SB3, the target is {target:g}"
                missed.append(line + _matrix_product_share(report, name, side))
        missed += _missed_memory(name, summaries)
    return missed


def _missed_memory(name: str, summaries: Mapping[Side, Summary]) -> list[str]:
    limit, theirs = MEMORY_TARGETS.get(name), summaries.get("sb3")
    if limit is None or theirs is None:
        return []
    shares = {side: summaries[side].peak_memory_mb / theirs.peak_memory_mb for side in summaries if side != "sb3"}
    return [
        f"{name} {side}: {share:.2f} of the memory of SB3, the target is at most {limit:g}"
        for side, share in shares.items()
        if share > limit
    ]


def _matrix_product_share(report: Report, name: str, side: Side) -> str:
    shares = [
        each.products_microseconds / each.microseconds_per_step
        for each in report.splits
        if (each.row, each.side) == (name, side)
    ]
    return f"; on one thread, the matrix products alone take {shares[0]:.0%} of the time" if shares else ""


def markdown(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def row_table(report: Report, name: str) -> str:
    """Format one row of the benchmark as a table with one line per side."""
    by = "wall" if row_named(name).by == "wall" else "CPU"
    header = ["side", "threads", "steps/s wall", "steps/s CPU", f"ratio ({by})", "lowest to highest"]
    header += ["import s", "warm-up s (longest)", "memory MB", "return (runs)", "counts"]
    lines = []
    for side, each in summarise(report, name).items():
        ratio = each.ratio
        lines.append(
            [
                SIDE_NAMES[side],
                each.threads,
                f"{each.wall:,.0f}",
                f"{each.cpu:,.0f}",
                f"{ratio.median:.2f}" if ratio else "-",
                f"{ratio.lowest:.2f} to {ratio.highest:.2f}" if ratio else "-",
                f"{each.import_seconds:.1f}",
                f"{each.warmup_seconds:.1f} ({each.longest_warmup_seconds:.1f})",
                f"{each.peak_memory_mb:,.0f}",
                _format_return(each),
                "-" if side == "sb3" else _verdict(report, each),
            ]
        )
    return f"{name}: {row_named(name).title()}\n\n{markdown(header, lines)}"


def _format_return(summary: Summary) -> str:
    if summary.episode_return is None:
        return "-"
    error = f" +- {summary.return_error:,.1f}" if summary.runs > 1 else ""
    return f"{summary.episode_return:,.1f}{error} ({summary.runs})"


def _verdict(report: Report, summary: Summary) -> str:
    if report.steps_scale < 1.0:
        return "not judged"
    return "yes" if summary.counts else "NO"


def split_table(report: Report) -> str:
    """Format where our time goes, next to the limits."""
    header = ["row", "side", "env %", "act %", "store %", "update %", "rest %", "us per step", "raw env us"]
    header.append("matrix products us")
    parts = ("env", "act", "store", "update", "rest")
    return markdown(
        header,
        (
            [
                each.row,
                SIDE_NAMES[each.side],
                *(f"{each.shares[part]:.0f}" for part in parts),
                f"{each.microseconds_per_step:,.1f}",
                f"{each.raw_env_microseconds:,.1f}",
                f"{each.products_microseconds:,.1f}",
            ]
            for each in sorted(report.splits, key=lambda split: [row.name for row in ROWS].index(split.row))
        ),
    )


def growth_table(report: Report) -> str:
    """Format one line per quantity, size and side."""
    return markdown(
        ["what grows", "size", "side", "value", "unit"],
        (
            [each.quantity, f"{each.size:,}", SIDE_NAMES[each.side], _readable(each.value), each.unit]
            for each in report.growth
        ),
    )


def _readable(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def save_report(path: Path, report: Report) -> None:
    """Write every measurement and the medians of every row as JSON."""
    medians = {
        name: {side: asdict(summary) for side, summary in summarise(report, name).items()}
        for name in report.row_names()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**asdict(report), "medians": medians}, indent=1) + "\n")


def load_report(path: Path) -> Report:
    """Read a report that `save_report` wrote."""
    plain: dict[str, Any] = json.loads(path.read_text())
    return Report.from_plain(plain)


def draw_chart(path: Path, report: Report) -> None:
    """Draw the ratio of each row and side to Stable-Baselines3, with the lowest and the highest round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    axes = figure.subplots()
    names = report.row_names()
    measured = {each.side for each in report.measurements}
    sides = [side for side in SIDE_NAMES if side in measured and side != "sb3"]
    width = 0.8 / max(len(sides), 1)
    for place, side in enumerate(sides):
        offset = width * (place - (len(sides) - 1) / 2)
        summaries = [summarise(report, name).get(side) for name in names]
        found = [(index + offset, each.ratio) for index, each in enumerate(summaries) if each and each.ratio]
        medians = [ratio.median for _, ratio in found]
        below = [ratio.median - ratio.lowest for _, ratio in found]
        above = [ratio.highest - ratio.median for _, ratio in found]
        positions = [position for position, _ in found]
        bars = axes.bar(positions, medians, 0.95 * width, yerr=[below, above], capsize=3, label=SIDE_NAMES[side])
        axes.bar_label(bars, fmt="%.1f", padding=2)
    axes.margins(y=0.15)  # room for the labels
    axes.axhline(1.0, color="black", linewidth=1.0, label="SB3")
    axes.set_xticks(range(len(names)), [f"{name}\n{_short_title(name)}" for name in names])
    axes.set(ylabel="steps per second, SB3 = 1", title="Training speed relative to Stable-Baselines3")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def draw_growth(path: Path, report: Report) -> None:
    """Draw one panel per quantity with logarithmic axes and one line per side."""
    from matplotlib.figure import Figure

    quantities = list(dict.fromkeys(each.quantity for each in report.growth))
    figure = Figure(figsize=(3.0 * len(quantities), 3.0), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, len(quantities), squeeze=False)[0], quantities, strict=True):
        points = [each for each in report.growth if each.quantity == quantity]
        for side in dict.fromkeys(each.side for each in points):
            line = [each for each in points if each.side == side]
            axes.plot([each.size for each in line], [each.value for each in line], "o-", label=SIDE_NAMES[side])
        values = [each.value for each in points]
        limits = (0.5 * min(values), 2.0 * max(values))  # wide limits, so that a constant looks flat
        axes.set(xscale="log", yscale="log", title=quantity, ylabel=points[0].unit, ylim=limits)
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def growth_chart(chart: Path) -> Path:
    """Return the path of the growth chart, next to the chart of ratios."""
    return chart.with_stem(f"{chart.stem}_growth")


def _short_title(name: str) -> str:
    row = row_named(name)
    return f"{row.algo.upper()} {row.short_env_id.partition('-')[0]}"


_METHOD = """\
Each measurement is one training run in a new process. Both sides have the same env, number of envs, steps per update,
batch size, gradient steps, network and parameters of the algorithm. `benchmarks/speed_common.py` contains all of them;
everything else is left at its default. SB3 gets half of our `vf_coef`, because it weighs the whole squared error of the
values, and this package weighs half of it. Rows with images stack four frames of 84x84 bytes, ours by `frame_stack` and
SB3 by `VecFrameStack`. Lines with `bfloat16` have [`precision: bfloat16`](algorithms.md#precision), so the products of
their updates have fewer digits; all other lines, and SB3, compute in float32. Stable-Baselines3 runs with its usual
set-up: `make_vec_env` with its monitor and `DummyVecEnv`, without log output and without evaluation. Our side steps its
envs in the training process, without evaluation, with a checkpoint at the start and at the end, and one log line at the
end. Work after the last update (this log line and checkpoint) counts for the memory but not for the speed. Logs and
checkpoints during training, which this package writes by default, are not measured.

- **import**: seconds until the library and its dependencies are imported.
- **warm-up**: seconds from there to the end of the first update. This includes creating envs and networks, the first
  experience, and compilation. Compiled code is kept on disk between rounds; the longest warm-up of any run is in
  brackets.
- **steps/s**: env steps per second from the end of the first update to the end of the last one, by wall time and by the
  CPU time of the process and its children.
- **threads**: each side is measured with these numbers of torch threads: {threads}. The table shows the faster one.
  Rows with images are measured with the largest number only.
- **ratio**: our speed divided by that of SB3 within one round, by CPU time, or by wall time where the table says so.
  The table shows the median over the rounds, the lowest and the highest. The sides alternate within a round and change
  their order from round to round.
- **memory**: the peak resident memory of the process.{compiling}
- **return**: the mean over the last training episodes of a run (up to 100), then over all runs of a side, with its
  standard error. Each run has its own seed. A ratio does not count if our return is lower than SB3's by more than
  {tolerance:.0%} of its absolute value and by more than two standard errors of the difference. This is judged only at
  the full budget.{further}
"""
_EXTRA_RUNS = "\n  Some runs are trained only for their returns, several at the same time."


def write_document(path: Path, report: Report, chart: Path | None) -> None:
    """Write the page with all results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    charts = [chart, growth_chart(chart)] if chart else []
    path.write_text(document(report, [os.path.relpath(each, path.parent) for each in charts]))


def document(report: Report, chart_links: Sequence[str] = ()) -> str:
    """Format the page as Markdown; all its numbers come from the report."""
    threads = sorted({each.threads for each in report.measurements})
    sections = [
        "# Speed next to Stable-Baselines3",
        "This page is written by `benchmarks/speed.py`. `make bench` repeats all measurements and stores them in "
        '`benchmarks/results/speed.json`. "Ours" is this package, and "SB3" is Stable-Baselines3. '
        "[Deployment](deployment.md#speed) has the speed of exported agents.",
        f"{report.origin}; budgets: {report.steps_scale:g} times the full budgets.",
        *_describe_earlier(report),
        *(f"![Ratios of all rows]({link})" for link in chart_links[:1]),
        "## Ratios",
        *(f"### {row_table(report, name)}" for name in report.row_names()),
        _describe_targets(report),
        *_describe_compiling(report),
        "## How the speed is measured",
        _METHOD.format(
            threads=", ".join(str(number) for number in threads),
            tolerance=TOLERANCE,
            compiling=_compiling_memory(report),
            further=_EXTRA_RUNS if report.outcomes else "",
        ).strip(),
    ]
    return "\n\n".join([*sections, *_split_section(report), *_growth_section(report, chart_links[1:])]) + "\n"


def _describe_earlier(report: Report) -> list[str]:
    return [
        f"Measured earlier: {', '.join(name for name, each in report.earlier.items() if each == origin)}. {origin}."
        for origin in dict.fromkeys(report.earlier.values())
    ]


def _compiling_memory(report: Report) -> str:
    most = max((each.children_memory_mb for each in report.measurements if each.side == "compiled"), default=0.0)
    if not most:
        return ""
    return (
        " Compilation runs in a separate process, only in the\n"
        f"  first run with the same settings, and is not included. Its largest process used {most:,.0f} MB."
    )


def _describe_targets(report: Report) -> str:
    missed = missed_targets(report)
    if not missed:
        return "Every measured row reaches its targets (`TARGETS` in `benchmarks/speed_report.py`)."
    return "Targets (`TARGETS` in `benchmarks/speed_report.py`) that are missed:\n\n" + "\n".join(
        f"- {line}" for line in missed
    )


def _describe_compiling(report: Report) -> list[str]:
    break_evens = {name: break_even(summarise(report, name)) for name in report.row_names()}
    lines = [f"{name} {float(f'{steps:.1e}'):,.0f}" for name, steps in break_evens.items() if steps is not None]
    if not lines:
        return []
    chosen = [name for name in report.row_names() if name in report.compiled_by_auto]
    return [
        "The first compiled run with new settings waits for the compiler. It makes up for this time after about this "
        f"many env steps: {', '.join(lines)}. Later runs reuse the compiled code. Rows that are not listed gain too "
        "little to measure, or were not compiled. `compile: auto` uses its own estimate: for runs of a million env "
        f"steps, it compiles {', '.join(chosen) or 'none'}; all other rows run as in their lines "
        '"ours, eager".'
    ]


def break_even(summaries: Mapping[Side, Summary]) -> float | None:
    """Return the env steps after which a run that has to be compiled first is ahead of an eager run.

    Return None unless every compiled round is faster than every eager round.
    """
    eager, compiled = summaries.get("eager"), summaries.get("compiled")
    if eager is None or compiled is None or eager.ratio is None or compiled.ratio is None:
        return None
    if compiled.ratio.lowest <= eager.ratio.highest or compiled.wall <= eager.wall:
        return None
    waited = compiled.longest_warmup_seconds - eager.warmup_seconds
    return max(waited, 0.0) / (1.0 / eager.wall - 1.0 / compiled.wall)


def _split_section(report: Report) -> list[str]:
    if not report.splits:
        return []
    return [
        "## Where our time goes",
        "These times come from a separate, shorter run with timers around the vector env's `step` and `reset`, the "
        "choice of actions, the storing of transitions, and the update (for PPO, including the advantages). `rest` is "
        "the remaining wall time. Two lower limits are measured in the same process: one step of the bare env with "
        "random actions, and the matrix products (for images, the convolutions) of the update alone, forward and "
        "backward. All times are in "
        "microseconds per env step, on one thread.",
        split_table(report),
    ]


def _growth_section(report: Report, chart_links: Sequence[str]) -> list[str]:
    if not report.growth:
        return []
    return [
        "## How the speed scales",
        "The table shows the speed of PPO on CartPole-v1 with more envs (256 steps each, minibatch 256, 4 epochs), the "
        "time of one gradient step with wider networks (two hidden layers, batch 256), and the time to sample a batch "
        "of 64 from a full replay buffer.",
        *(f"![Speed over the size of the problem]({link})" for link in chart_links),
        growth_table(report),
    ]
