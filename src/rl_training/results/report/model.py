"""The content of a report as plain values. It is built from groups of runs; `page.py` renders it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.experiment.metrics import EVALUATION, RETURN, SUCCESS_RATE, TRAINING, logged_name
from rl_training.results.comparison import compare
from rl_training.results.curves import Band, Curve, align_curves, band
from rl_training.results.loading import Run, RunGroup, known_metrics
from rl_training.results.report.diagnostics import Hint, find_hints
from rl_training.results.report.facts import (
    Difference,
    Fact,
    TimeShare,
    differing_settings,
    machine_facts,
    original_command,
    rerun_commands,
    steps_per_second,
    time_shares,
    wall_seconds,
    yaml_text,
)
from rl_training.results.report.svg import Chart, Series
from rl_training.results.statistics import Bootstrap, Estimate, estimate

_MAX_POINTS = 200  # per band; more would not be visible
_BAND = Bootstrap(resamples=2_000)


@dataclass(frozen=True)
class Animation:
    """A short film of an agent."""

    png: bytes
    """An animated PNG."""
    still: bytes
    """A PNG of the first frame, for readers who prefer no motion."""
    size: tuple[int, int]
    """Width and height in pixels."""
    caption: str


@dataclass(frozen=True)
class RunRow:
    """A row of the table of runs."""

    seed: int
    status: str
    reason: str
    """Why the run ended, unless it used up its budget."""
    steps: int
    budget: int
    final: float | None
    best: float | None
    wall_seconds: float | None
    steps_per_second: float | None
    directory: str
    command: str


@dataclass(frozen=True)
class HintRow:
    """A hint and the seeds that it applies to. Its numbers are those of the first seed."""

    hint: Hint
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class GroupPart:
    """The part of a report about one group."""

    number: int
    label: str
    algo: str
    env_id: str
    rows: tuple[RunRow, ...]
    num_counted: int
    """Number of runs in curves and scores: the finished ones, or all if none has finished."""
    score: Estimate | None
    """Interquartile mean of the final evaluations of the counted runs."""
    hints: tuple[HintRow, ...]
    times: tuple[TimeShare, ...]
    config: str
    config_seed: int
    commands: tuple[str, ...]

    @property
    def is_partly_counted(self) -> bool:
        """Whether some runs are shown but not counted."""
        return self.num_counted < len(self.rows)


@dataclass(frozen=True)
class Verdict:
    """A sentence that says whether the second of two groups is better, with notes about the comparison."""

    sentence: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvPart:
    """The part of a report about one environment."""

    env_id: str
    charts: tuple[Chart, ...]
    groups: tuple[GroupPart, ...]
    verdict: Verdict | None
    """Comparison of the groups, if there are exactly two."""


@dataclass(frozen=True)
class Report:
    """The content of a whole report."""

    title: str
    created_at: str
    version: str
    metric: str
    """The evaluation metric of the scores, as a user names it."""
    envs: tuple[EnvPart, ...]
    notes: tuple[str, ...]
    differences: tuple[Difference, ...]
    facts: tuple[Fact, ...]
    animation: Animation | str
    """The film of an agent, or one line that says why there is none."""

    @property
    def groups(self) -> tuple[GroupPart, ...]:
        """The groups of all environments, in the order of their numbers."""
        return tuple(sorted((group for env in self.envs for group in env.groups), key=lambda group: group.number))


def build_report(
    groups: Sequence[RunGroup], *, animation: Animation | str, created_at: str, version: str, metric: str = RETURN
) -> Report:
    """Build the content of a report about the groups, whose runs are scored by an evaluation metric."""
    runs = [run for group in groups for run in group.runs]
    numbered = list(enumerate(groups))
    env_ids = list(dict.fromkeys(group.env_id for group in groups))
    parts = [_env_part([pair for pair in numbered if pair[1].env_id == env_id], metric) for env_id in env_ids]
    tasks = dict.fromkeys(f"{group.algo.upper()} on {group.env_id}" for group in groups)
    return Report(
        title=", ".join(tasks),
        created_at=created_at,
        version=version,
        metric=metric,
        envs=tuple(parts),
        notes=tuple(dict.fromkeys(note for group in groups for note in (*group.notes, *_notes(group)))),
        differences=tuple(differing_settings(groups)),
        facts=tuple(machine_facts((run.run_dir.name, run.metadata) for run in runs)),
        animation=animation,
    )


def best_run(groups: Sequence[RunGroup], metric: str = RETURN) -> Run:
    """Return the run to show: the counted run on the first environment with the best final evaluation.

    Refuse a metric that no run has.
    """
    every = [run for group in groups for run in group.runs]
    if metric != RETURN and not any(len(run.curve(logged_name(metric))) for run in every):
        raise ConfigError(f"--metric {metric}: no run has it; choose from {', '.join(known_metrics(every))}")
    runs = [run for group in groups if group.env_id == groups[0].env_id for run in counted_runs(group)]
    evaluated = [(final, run) for run in runs if (final := _finite_final(run, metric)) is not None]
    return max(evaluated, key=lambda pair: pair[0])[1] if evaluated else runs[0]


def _finite_final(run: Run, metric: str) -> float | None:
    """Return a metric of the last evaluation; None if there is none or if it is not finite."""
    final = run.final(metric)
    return final if final is not None and math.isfinite(final) else None


def counted_runs(group: RunGroup) -> tuple[Run, ...]:
    """Return the runs that have finished, or all runs if none has."""
    return tuple(run for run in group.runs if run.is_finished) or group.runs


def _notes(group: RunGroup) -> list[str]:
    unfinished = sum(not run.is_finished for run in group.runs)
    if unfinished == len(group.runs):
        return [f"{group.label}: no run has finished, so all numbers are preliminary"]
    if unfinished:
        return [f"{group.label}: {unfinished} of {len(group.runs)} runs have not finished; they are shown, not counted"]
    return []


def _env_part(numbered: Sequence[tuple[int, RunGroup]], metric: str) -> EnvPart:
    groups = [group for _, group in numbered]
    charts = [_chart(name, title, about, numbered) for name, title, about in _charts(metric)]
    return EnvPart(
        env_id=groups[0].env_id,
        charts=tuple(chart for chart in charts if chart.series),
        groups=tuple(_group_part(number, group, metric) for number, group in numbered),
        verdict=_verdict(groups[0], groups[1], metric) if len(groups) == 2 else None,
    )


def _charts(metric: str) -> Iterator[tuple[str, str, str]]:
    """Yield the logged name, title and description of each chart that a report may contain."""
    shown = [EVALUATION, logged_name(SUCCESS_RATE), logged_name(metric)]
    for evaluated in dict.fromkeys(shown):
        name = evaluated.removeprefix("eval/")
        trained = TRAINING if evaluated == EVALUATION else f"rollout/{name}"
        quantity = RETURN if evaluated == EVALUATION else name.replace("_", " ")
        yield evaluated, f"Evaluation {quantity}", "mean over the episodes of an evaluation"
        yield trained, f"Training {quantity}", "mean over the last 100 episodes"


def _chart(metric: str, title: str, about: str, numbered: Sequence[tuple[int, RunGroup]]) -> Chart:
    series = [_series(number, group, metric) for number, group in numbered]
    return Chart(title, about, tuple(each for each in series if each.seeds or each.others))


def _series(number: int, group: RunGroup, metric: str) -> Series:
    counted = counted_runs(group)
    seeds = _logged_curves(counted, metric)
    others = _logged_curves([run for run in group.runs if run not in counted], metric)
    return Series(group.label, number, _statistic_band(seeds), seeds, others)


def _logged_curves(runs: Sequence[Run], metric: str) -> tuple[Curve, ...]:
    return tuple(curve for run in runs if len(curve := run.curve(metric)))


def _statistic_band(curves: Sequence[Curve]) -> Band:
    if not curves:
        nothing = np.empty(0)
        return Band(nothing, nothing, nothing, nothing)
    return band(align_curves(curves).common().thinned(_MAX_POINTS), bootstrap=_BAND)


def _group_part(number: int, group: RunGroup, metric: str) -> GroupPart:
    counted = counted_runs(group)
    finals = [final for run in counted if (final := _finite_final(run, metric)) is not None]
    return GroupPart(
        number=number,
        label=group.label,
        algo=group.algo,
        env_id=group.env_id,
        rows=tuple(_row(run, metric) for run in group.runs),
        num_counted=len(counted),
        score=estimate(finals) if finals else None,
        hints=_hint_rows(group),
        times=tuple(time_shares(group.runs)),
        config=yaml_text(group.runs[0].config),
        config_seed=group.runs[0].seed,
        commands=tuple(rerun_commands(group)),
    )


def _row(run: Run, metric: str) -> RunRow:
    values = run.curve(logged_name(metric)).values
    metadata: dict[str, Any] = run.metadata
    return RunRow(
        seed=run.seed,
        status=run.status,
        reason=str(metadata.get("error") or metadata.get("stop_reason") or ""),
        steps=run.global_step,
        budget=run.total_timesteps,
        final=_finite_final(run, metric),
        best=float(values.max()) if len(values) else None,
        wall_seconds=wall_seconds(run),
        steps_per_second=steps_per_second(run),
        directory=str(run.run_dir),
        command=original_command(metadata.get("command")),
    )


def _hint_rows(group: RunGroup) -> tuple[HintRow, ...]:
    found: dict[str, list[tuple[int, Hint]]] = {}
    for run in group.runs:
        for hint in find_hints(run):
            found.setdefault(hint.title, []).append((run.seed, hint))
    return tuple(HintRow(seen[0][1], tuple(seed for seed, _ in seen)) for seen in found.values())


def _verdict(a: RunGroup, b: RunGroup, metric: str) -> Verdict:
    first, second = (RunGroup(group.label, counted_runs(group)) for group in (a, b))
    if any(run.final(metric) != _finite_final(run, metric) for run in (*first.runs, *second.runs)):
        return Verdict("Not compared: a final evaluation is not a finite number.")
    try:
        comparison = compare(first, second, metric=metric)
    except RunDirectoryError as error:
        return Verdict(f"Not compared: {error}.")
    return Verdict(comparison.sentence, comparison.notes)
