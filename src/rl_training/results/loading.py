"""Loading finished runs from their directories, alone or as groups that differ only in their seed."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl_training.errors import ConfigError, RunDirectoryError, describe_error
from rl_training.experiment.config import training_differences
from rl_training.experiment.files import check_regular
from rl_training.experiment.metrics import EVALUATION, RETURN, TRAINING, logged_name, result_name
from rl_training.experiment.runs import RunContext, context_of, read_metadata, read_metrics
from rl_training.experiment.sources import read_yaml
from rl_training.experiment.studies import find_runs_and_studies, is_study
from rl_training.results.curves import Curve, area_under_curve, read_curve
from rl_training.results.statistics import FloatArray

Score = Literal["final", "best", "auc"]
"""Score of a run: the last evaluation, the best one, or the mean of the evaluation curve over env steps."""

_FINISHED = ("completed", "stopped")


@dataclass(frozen=True, eq=False)
class Run:
    """One run, read from its directory."""

    run_dir: Path
    algo: str
    env_id: str
    seed: int
    status: str
    global_step: int
    total_timesteps: int
    config: dict[str, Any]
    metadata: dict[str, Any] = field(repr=False)
    rows: tuple[dict[str, Any], ...] = field(repr=False)
    """The lines of the metrics file."""

    @property
    def is_finished(self) -> bool:
        """Whether the run used up its budget or was stopped by a callback."""
        return self.status in _FINISHED

    @property
    def task(self) -> tuple[str, str]:
        """Algorithm and environment."""
        return self.algo, self.env_id

    @property
    def evaluation(self) -> Curve:
        """Mean return of each evaluation over env steps."""
        return self.curve(EVALUATION)

    @property
    def training(self) -> Curve:
        """Mean return of the newest training episodes over env steps."""
        return self.curve(TRAINING)

    def curve(self, metric: str) -> Curve:
        """Return a logged metric over env steps; empty if it was never logged."""
        return read_curve(self.rows, metric)

    @property
    def final_return(self) -> float | None:
        """Mean return of the last evaluation; None if there was no evaluation, NaN if it was not finite."""
        return self.final(RETURN)

    def final(self, metric: str) -> float | None:
        """Return a metric of the last evaluation; None if it has none, NaN if it was not finite."""
        last, name = self.metadata.get("metrics") or {}, result_name(metric)
        if result_name(RETURN) not in last:
            curve = self.curve(logged_name(metric))
            return float(curve.values[-1]) if len(curve) else None
        if name not in last:
            return None
        return math.nan if last[name] is None else float(last[name])  # null stands for a number that is not finite

    def score(self, kind: Score = "final", metric: str = RETURN) -> float:
        """Return one number for the whole run."""
        curve, final = self.curve(logged_name(metric)), self.final(metric)
        if not len(self.evaluation):
            raise RunDirectoryError(f"{self.run_dir} has no evaluations: train with eval_episodes above 0")
        if not len(curve) or (kind == "final" and final is None):
            have = "its evaluations have" if not len(curve) else "its last evaluation has"
            raise RunDirectoryError(f"{self.run_dir}: {have} no '{metric}'; known: {', '.join(known_metrics([self]))}")
        if kind == "final" and final is not None:
            return final
        return area_under_curve(curve) if kind == "auc" else float(curve.values.max())


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs of one algorithm on one environment."""

    label: str
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    """Remarks for the reader of a result, such as runs that were left out or settings that differ; one line each."""

    @property
    def algo(self) -> str:
        """The algorithm of all runs."""
        return self.runs[0].algo

    @property
    def env_id(self) -> str:
        """The environment of all runs."""
        return self.runs[0].env_id

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(run.seed for run in self.runs)

    @property
    def budgets(self) -> tuple[int, ...]:
        """The different budgets of the runs in env steps, the smallest first."""
        return tuple(sorted({run.total_timesteps for run in self.runs}))

    def scores(self, kind: Score = "final", metric: str = RETURN) -> FloatArray:
        """Return one number per run, in the order of the runs."""
        return np.array([run.score(kind, metric) for run in self.runs])

    def curves(self, metric: str = EVALUATION) -> list[Curve]:
        """Return the metric of each run over env steps; some curves may be empty."""
        return [run.curve(metric) for run in self.runs]


def known_metrics(runs: Iterable[Run]) -> list[str]:
    """Return the names of all evaluation metrics of some runs, for messages."""
    logged = {name for run in runs for row in run.rows for name in row if name.startswith("eval/")}
    return [RETURN, *sorted(name.removeprefix("eval/") for name in logged)]


def parse_score(text: str) -> tuple[str, Score]:
    """Return the metric and the score that `auc`, `success_rate` (the final one) or `success_rate:auc` stands for."""
    kinds: dict[str, Score] = {"final": "final", "best": "best", "auc": "auc"}
    metric, colon, kind = text.partition(":")
    if not colon and metric in kinds:
        return RETURN, kinds[metric]
    if not metric or (colon and kind not in kinds):
        raise ConfigError(
            f"--metric {text}: give final, best, auc, or a metric such as success_rate or success_rate:auc"
        )
    return metric, kinds[kind or "final"]


def load_run(run_dir: Path | str) -> Run:
    """Read one run directory."""
    context = context_of(Path(run_dir))
    metadata = read_metadata(context)
    try:
        return _build_run(context, metadata)
    except (ConfigError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(f"{run_dir} cannot be read: {describe_error(error)}") from None


def _build_run(context: RunContext, metadata: dict[str, Any]) -> Run:
    if not isinstance(metadata.get("metrics") or {}, dict):
        raise ValueError(f"the metrics in {context.metadata_path.name} are not a JSON object")
    check_regular(context.config_path)
    rows = tuple(read_metrics(context))
    if not rows and context.metrics_path.exists() and context.metrics_path.stat().st_size:
        raise ValueError(f"no line of {context.metrics_path.name} can be read")
    return Run(
        run_dir=context.run_dir,
        algo=str(metadata["algo"]),
        env_id=str(metadata["env_id"]),
        seed=int(metadata["seed"]),
        status=str(metadata["status"]),
        global_step=int(metadata["global_step"]),
        total_timesteps=int(metadata["total_timesteps"]),
        config=read_yaml(context.config_path).values,
        metadata=metadata,
        rows=rows,
    )


def load_group(*paths: Path | str, label: str | None = None, unfinished: bool = False) -> RunGroup:
    """Load all runs below the paths as one group. They must share algorithm and environment.

    Runs that have not finished are left out and noted, unless `unfinished` is true.
    """
    if not paths:
        raise RunDirectoryError("no directory is given: give a run directory, or one that contains runs")
    runs, notes = _load_runs([Path(path) for path in paths], unfinished)
    tasks = sorted({f"{run.algo} on {run.env_id}" for run in runs})
    if len(tasks) > 1:
        raise RunDirectoryError(f"{_join_paths(paths)} mixes {', '.join(tasks)}: give a directory for each")
    label = label or ", ".join(labels_of(paths))
    return RunGroup(label, runs, (*notes, *_differing_settings(label, runs)))


def load_groups(paths: Sequence[Path | str], *, unfinished: bool = False) -> list[RunGroup]:
    """Load one group per path, or several if a path has runs of several algorithms or environments."""
    groups: list[RunGroup] = []
    for path, name in zip(paths, labels_of(paths), strict=True):
        runs, notes = _load_runs([Path(path)], unfinished)
        tasks = sorted({run.task for run in runs})
        for task in tasks:
            label = name if len(tasks) == 1 else f"{name}: {task[0]} on {task[1]}"
            members = tuple(run for run in runs if run.task == task)
            groups.append(RunGroup(label, members, (*notes, *_differing_settings(label, members))))
    return groups


def _load_runs(places: list[Path], unfinished: bool) -> tuple[tuple[Run, ...], list[str]]:
    """Return the runs to use, sorted by seed, and a note for each of the others."""
    found, notes = _readable_runs(places)
    kept = [run for run in found if run.is_finished or unfinished]
    notes += [f"left out: {run.run_dir} ({run.status})" for run in found if run not in kept]
    if not kept:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise RunDirectoryError(f"no finished runs below {_join_paths(places)}{reasons}: train some first")
    unique: list[Run] = []
    # Of runs with the same seed and settings, the longest is kept, or the newest of equally long ones.
    for run in sorted(kept, key=lambda run: (run.global_step, str(run.metadata.get("started_at"))), reverse=True):
        kept_run = next((other for other in unique if _is_repeat(run, other)), None)
        if kept_run is None:
            unique.append(run)
        else:
            notes.append(f"left out: {run.run_dir} (same seed {run.seed} and settings as {kept_run.run_dir.name})")
    return tuple(sorted(unique, key=lambda run: (run.seed, run.run_dir))), notes


def _readable_runs(places: list[Path]) -> tuple[list[Run], list[str]]:
    runs: dict[Path, Run] = {}
    notes: list[str] = []
    for place in places:
        if not place.is_dir():
            raise RunDirectoryError(f"{place} is not a directory: give a run directory, or one that contains runs")
        if is_study(place):
            raise RunDirectoryError(
                f"{place} is a study, whose runs differ in their parameters: give single runs of it, or a group of its "
                f"confirmation; `rl-training report {place}` shows all of it"
            )
        found, studies = find_runs_and_studies(place)
        notes += [f"left out: {study} (a study; give it to `rl-training report` alone)" for study in studies]
        for context in found:
            try:
                runs.setdefault(context.run_dir.resolve(), load_run(context.run_dir))
            except RunDirectoryError as error:
                notes.append(f"left out: {error}")
    return list(runs.values()), notes


def _is_repeat(run: Run, other: Run) -> bool:
    """Return whether one run repeats the other, so that counting both would count a seed twice."""
    return run.seed == other.seed and not training_differences(run.config, other.config)


def _differing_settings(label: str, runs: Sequence[Run]) -> Iterator[str]:
    first = runs[0]
    differing = {path for run in runs for path in training_differences(first.config, run.config)} - {"seed"}
    if any(run.total_timesteps != first.total_timesteps for run in runs):
        differing.add("total_timesteps")
    if differing:
        yield f"the runs of {label} differ in {', '.join(sorted(differing))}"


def labels_of(paths: Sequence[Path | str]) -> list[str]:
    """Return the names of the directories; the whole path if a name occurs more than once."""
    names = [Path(path).resolve().name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]


def _join_paths(paths: Sequence[Path | str]) -> str:
    return ", ".join(map(str, paths))
