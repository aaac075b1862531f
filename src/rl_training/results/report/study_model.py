"""The content of a report about a study as plain values; `study_page.py` renders it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RunDirectoryError, describe_error
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.search_space import Range, SearchSpace, read_space
from rl_training.experiment.sources import Layer
from rl_training.experiment.studies import (
    SETTINGS_FILE,
    STUDY_FILE,
    StudyRecord,
    StudySettings,
    Trial,
    read_settings,
    read_study,
)
from rl_training.results.report.facts import Fact, machine_facts
from rl_training.results.report.model import Animation
from rl_training.results.statistics import Estimate, Interval

OVERSHOOT = 1.5
"""The page mentions trials that trained for more than this many times the budget of their rung."""


@dataclass(frozen=True)
class TrialPart:
    """One trial."""

    number: int
    status: str
    rung: int
    """The number of rungs that the trial has reached."""
    steps: int
    """Env steps of all its runs."""
    values: tuple[float, ...]
    """The value at every rung that the trial has reached."""
    params: dict[str, Any]
    """The values of the searched parameters. A number for a parameter with a schedule is its start."""
    failure: str | None
    runs: dict[int, str]
    """The names of the run directories by seed."""

    @property
    def value(self) -> float | None:
        """The value at the highest rung that the trial has reached."""
        return self.values[-1] if self.values else None

    @property
    def is_ranked(self) -> bool:
        """Whether the trial has a value and has not failed."""
        return bool(self.values) and self.failure is None

    @property
    def is_promoted(self) -> bool:
        """Whether the trial has reached more than the first rung."""
        return self.rung > 1 and self.failure is None


@dataclass(frozen=True)
class ConfirmedSide:
    """The results of one config on new seeds."""

    label: str
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    iqm: Estimate


@dataclass(frozen=True)
class Confirmation:
    """The comparison of the best trial with the starting config on new seeds."""

    start: ConfirmedSide
    best: ConfirmedSide
    trial: int | None
    """The number of the trial that was confirmed; none if the record does not say."""
    sentence: str
    notes: tuple[str, ...]

    @property
    def trial_name(self) -> str:
        """The trial that was confirmed, for labels."""
        return "best trial" if self.trial is None else f"trial {self.trial}"


@dataclass(frozen=True)
class StudyReport:
    """The content of a whole report about a study."""

    study_dir: Path
    created_at: str
    version: str
    settings: StudySettings
    record: StudyRecord
    space: SearchSpace
    start: dict[str, Any]
    """The values of the searched parameters in the starting config."""
    trials: tuple[TrialPart, ...]
    confirmation: Confirmation | None
    facts: tuple[Fact, ...]
    animation: Animation | str

    @property
    def best(self) -> TrialPart | None:
        """The best trial at the highest rung that any trial has reached."""
        return None if self.record.best_trial is None else self.trials[self.record.best_trial]

    @property
    def ranked(self) -> tuple[TrialPart, ...]:
        """The trials that have a value and have not failed, by their value at the first rung, the best last."""
        return tuple(sorted((trial for trial in self.trials if trial.is_ranked), key=lambda trial: trial.values[0]))

    @property
    def importance(self) -> dict[str, float]:
        """The share of each parameter in the differences between trials, the largest first."""
        shares = {name: share for name, share in self.record.importance.items() if 0.0 <= share <= 1.0}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def metric(self) -> str:
        """The evaluation metric that trials are compared by."""
        return self.settings.train_config.best_metric

    @property
    def full_steps(self) -> int:
        """The env steps of training all trials to the end."""
        return len(self.trials) * self.settings.seeds_per_trial * self.settings.budgets[-1]

    @property
    def overshooting(self) -> int:
        """The number of trials that trained far beyond the budget of their rung."""
        budgets = self.settings.budgets
        most = [OVERSHOOT * self.settings.seeds_per_trial * budget for budget in budgets]
        return sum(trial.rung > 0 and trial.steps > most[min(trial.rung, len(most)) - 1] for trial in self.trials)


@dataclass(frozen=True)
class LoadedStudy:
    """The content of the files of a study directory."""

    study_dir: Path
    settings: StudySettings
    record: StudyRecord
    space: SearchSpace

    @property
    def best_run_dir(self) -> Path | None:
        """The directory of the first run of the best trial."""
        best = self.record.best_trial
        return None if best is None else self.study_dir / self.record.trials[best].runs[0].run_dir


def load_study(study_dir: Path) -> LoadedStudy:
    """Read a study directory. Refuse files that no study can have written."""
    settings, record = read_settings(study_dir), read_study(study_dir)
    try:
        space = read_space(Layer("space", settings.space), settings.train_config)
        assert settings.budgets[0] > 0
    except (ConfigError, LookupError, TypeError, ValueError, AssertionError) as error:
        raise RunDirectoryError(f"{study_dir / SETTINGS_FILE} is damaged: {describe_error(error)}") from None
    return LoadedStudy(study_dir, settings, record, space)


def build_study_report(study: LoadedStudy, *, animation: Animation | str, created_at: str, version: str) -> StudyReport:
    """Build the content of a report about a study."""
    record = study.record
    try:
        return StudyReport(
            study_dir=study.study_dir,
            created_at=created_at,
            version=version,
            settings=study.settings,
            record=record,
            space=study.space,
            start=searched_values(study.space.parameters, study.settings.train_config),
            trials=tuple(_trial_part(study, trial) for trial in record.trials),
            confirmation=None if record.confirmation is None else _read_confirmation(record.confirmation),
            facts=tuple(machine_facts([(study.study_dir.name, record.model_dump())])),
            animation=animation,
        )
    except (ConfigError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise RunDirectoryError(f"{study.study_dir / STUDY_FILE} is damaged: {describe_error(error)}") from None


def searched_values(names: Iterable[str], config: TrainConfig) -> dict[str, Any]:
    """Return the values of the searched parameters in a config."""
    plain = plain_config(config)
    every = {**plain["algo_kwargs"], **plain}
    return {name: every[name] for name in names if name in every}


def _trial_part(study: LoadedStudy, trial: Trial) -> TrialPart:
    return TrialPart(
        number=trial.number,
        status=study.record.describe_status(trial, study.settings.rungs),
        rung=len(trial.values),
        steps=sum(run.steps for run in trial.runs),
        values=tuple(trial.values),
        params=_checked_params(study.space, trial),
        failure=trial.failure,
        runs={run.seed: run.run_dir for run in trial.runs},
    )


def _checked_params(space: SearchSpace, trial: Trial) -> dict[str, Any]:
    """Return the searched parameters of a trial. Refuse anything but a number for a range."""
    params = {name: trial.params[name] for name in space.parameters if name in trial.params}
    for name, value in params.items():
        if isinstance(space.parameters[name], Range) and not _is_number(value):
            raise ValueError(f"trial {trial.number} has {name}={str(value)[:60]!r}, which is not a finite number")
    return params


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _read_confirmation(found: dict[str, Any]) -> Confirmation:
    """Read the comparison that `compare` has written; a wrong type raises an error."""
    start, best = (_read_side(found[name]) for name in ("a", "b"))
    number = best.label.removeprefix("trial")
    return Confirmation(
        start=start,
        best=best,
        trial=int(number) if number.isdecimal() and len(number) < 10 else None,
        sentence=str(found["sentence"]),
        notes=tuple(map(str, found["notes"])),
    )


def _read_side(found: dict[str, Any]) -> ConfirmedSide:
    seeds, scores = tuple(map(int, found["seeds"])), tuple(map(_finite, found["scores"]))
    if len(seeds) != len(scores) or not seeds:
        raise ValueError("the confirmation does not have one score per seed")
    ends = found["iqm"]["interval"]
    low, high = (sign * math.inf if ends[name] is None else _finite(ends[name]) for name, sign in _ENDS)
    iqm = Estimate(_finite(found["iqm"]["value"]), Interval(low, high, _finite(ends["confidence"])))
    return ConfirmedSide(str(found["label"]), seeds, scores, iqm)


_ENDS = (("low", -1.0), ("high", 1.0))


def _finite(value: Any) -> float:
    if not _is_number(value):
        raise ValueError(f"the confirmation has {str(value)[:60]!r} in place of a number")
    return float(value)
