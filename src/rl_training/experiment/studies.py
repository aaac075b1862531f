"""Studies: directories with the runs of a hyper-parameter search.

`study.yaml` holds the settings, `study.json` the trials and the result.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.records import (
    LOGS_FOLDER,
    RunsRecord,
    check_directory_name,
    check_files,
    read_record,
    write_record,
)
from rl_training.experiment.runs import (
    RunContext,
    find_runs,
    make_directory,
    run_name,
    slug,
    unique_suffix,
    write_values,
)
from rl_training.experiment.sources import read_yaml
from rl_training.experiment.validation import Count, Float, Int, PositiveInt, StrictModel

SETTINGS_FILE = "study.yaml"
STUDY_FILE = "study.json"
BEST_FILE = "best.yaml"
CONFIRMATION_FOLDER = "confirmation"
_MAX_TRIALS = 10_000
_STUDY_LIMIT = 64 * 2**20  # bytes of `study.json`

SamplerName = Literal["tpe", "random", "cmaes", "grid"]
TrialStatus = Literal["training", "paused", "completed", "failed"]


class StudyOptions(StrictModel):
    """How a study searches."""

    trials: Annotated[PositiveInt, Field(le=_MAX_TRIALS)] = 30
    """Number of trials."""
    sampler: SamplerName = "tpe"
    """How the values of a new trial are chosen."""
    rungs: Annotated[PositiveInt, Field(le=10)] = 3
    """Number of budgets at which trials are compared; 1 trains every trial to the end."""
    reduction: Annotated[PositiveInt, Field(ge=2, le=100)] = 3
    """One in this many trials is promoted to the next rung, whose budget is this many times as large."""
    seeds_per_trial: Annotated[PositiveInt, Field(le=1_000)] = 1
    """Number of runs of each trial; its value is their mean."""
    episodes: PositiveInt = 20
    """Episodes of the evaluation that gives a run's value at a rung; they are the same for all trials."""
    confirm: Annotated[Count, Field(le=1_000)] = 5
    """Number of new seeds on which the best trial is compared with the starting config; 0 for no comparison."""
    seed: Annotated[Int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed with which the values of trials are chosen."""
    storage: str | None = None
    """URL of a storage that Optuna's tools read the trials from; None for the file `optuna.journal` of the study."""

    def budgets_of(self, total_timesteps: int) -> list[int]:
        """Return the env steps of every rung; the last one is the whole budget."""
        divisors = [self.reduction**power for power in reversed(range(self.rungs))]
        return [-(-total_timesteps // divisor) for divisor in divisors]


class StudySettings(StudyOptions):
    """What a study searches and how; the content of `study.yaml`."""

    config: dict[str, Any]
    """The config that the trials start from, with all values."""
    space: dict[str, Any]
    """The search space."""

    @property
    def sha256(self) -> str:
        """A digest of what must not change after the study has begun."""
        fixed = self.model_dump(mode="json", exclude={"trials", "storage"})
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()

    @property
    def train_config(self) -> TrainConfig:
        """The config that the trials start from."""
        return TrainConfig(**self.config)

    @property
    def budgets(self) -> list[int]:
        """The env steps of every rung; the last one is the whole budget."""
        return self.budgets_of(int(self.config["total_timesteps"]))

    @property
    def trial_seeds(self) -> list[int]:
        """The seeds of the runs of every trial."""
        first = int(self.config["seed"])
        return list(range(first, first + self.seeds_per_trial))

    @property
    def confirmation_seeds(self) -> list[int]:
        """Seeds that no trial has used."""
        first = self.trial_seeds[-1] + 1
        return list(range(first, first + self.confirm))


class TrialRun(StrictModel):
    """One run of a trial."""

    seed: int
    run_dir: Annotated[str, AfterValidator(check_directory_name)]
    """Name of the run directory inside the study directory."""
    values: tuple[Float, ...] = ()
    """The value at every rung that the run has reached."""
    steps: int = 0
    """The env steps that the run had trained for when it last ended."""


class Trial(StrictModel):
    """One choice of values, and its runs."""

    number: int
    params: dict[str, Any]
    """The values of the searched parameters."""
    rung: int = 0
    """The rung that the trial trains to, or has reached."""
    runs: tuple[TrialRun, ...]
    failure: str | None = None
    """Why a run of the trial failed."""

    @property
    def values(self) -> list[float]:
        """The mean over all runs at every rung that all of them have reached."""
        return [sum(column) / len(column) for column in zip(*(run.values for run in self.runs), strict=False)]

    @property
    def unfinished_runs(self) -> list[TrialRun]:
        """The runs that still have to train to the trial's rung."""
        return [] if self.failure else [run for run in self.runs if len(run.values) <= self.rung]

    def status(self, num_rungs: int) -> TrialStatus:
        """Return the status of the trial in a study with this many rungs."""
        if self.failure:
            return "failed"
        if self.unfinished_runs:
            return "training"
        return "completed" if self.rung == num_rungs - 1 else "paused"

    def with_run(self, changed: TrialRun) -> "Trial":
        """Return a copy with one run replaced."""
        runs = tuple(changed if run.seed == changed.seed else run for run in self.runs)
        return self.model_copy(update={"runs": runs})


class StudyRecord(RunsRecord):
    """The content of `study.json`, without the format number."""

    settings_sha256: str | None = None
    """The digest of the settings that the study began with; none in studies of earlier versions."""
    trials: tuple[Trial, ...] = ()
    steps: int = 0
    """Env steps of all trials together."""
    best_trial: int | None = None
    """Number of the best trial at the highest rung that any trial has reached."""
    importance: dict[str, float] = Field(default_factory=dict)
    """Share of each parameter in the differences between trials; empty if it is not known."""
    confirmation: dict[str, Any] | None = None
    """The comparison of the best trial (B) with the starting config (A) on new seeds, as `compare --json` gives it."""

    def describe_status(self, trial: Trial, num_rungs: int) -> str:
        """Return the status of a trial for display: `unfinished` instead of `training` if the study has ended."""
        status = trial.status(num_rungs)
        return "unfinished" if status == "training" and self.status != "running" else status

    def with_trial(self, changed: Trial) -> "StudyRecord":
        """Return a copy with one trial replaced, or added if it is new."""
        kept = tuple(changed if trial.number == changed.number else trial for trial in self.trials)
        trials = (*kept, changed) if changed.number == len(self.trials) else kept
        steps = sum(run.steps for trial in trials for run in trial.runs)
        return self.model_copy(update={"trials": trials, "steps": steps})


def is_study(path: Path) -> bool:
    """Return whether this is the directory of a study."""
    return (path / SETTINGS_FILE).exists()


def find_runs_and_studies(root: Path) -> tuple[list[RunContext], list[Path]]:
    """Return the runs below a directory that belong to no study, and the directories of the studies."""
    studies = sorted(path.parent for path in root.rglob(SETTINGS_FILE))
    runs = [run for run in find_runs(root) if not any(run.run_dir.is_relative_to(study) for study in studies)]
    return runs, studies


def make_trial(settings: StudySettings, number: int, params: dict[str, Any]) -> Trial:
    """Return a new trial, whose runs have not begun."""
    configs = [settings.train_config.model_copy(update={"seed": seed}) for seed in settings.trial_seeds]
    runs = [TrialRun(seed=config.seed, run_dir=run_name(config, f"trial{number:04d}")) for config in configs]
    return Trial(number=number, params=params, runs=tuple(runs))


def create_study(output_dir: Path, settings: StudySettings, **about: Any) -> tuple[Path, StudyRecord]:
    """Create a study directory without trials; `about` holds the record's fields that the settings lack."""
    config = settings.train_config
    name = f"tune__{slug(config.algo)}__{slug(config.env_id)}__{unique_suffix()}"
    record = StudyRecord(algo=config.algo, env_id=config.env_id, settings_sha256=settings.sha256, **about)
    study_dir = make_directory(output_dir, name, (LOGS_FOLDER,))
    write_settings(study_dir, settings)
    write_study(study_dir, record)
    return study_dir, record


def write_settings(study_dir: Path, settings: StudySettings) -> None:
    """Replace `study.yaml`."""
    write_values(study_dir / SETTINGS_FILE, settings.model_dump(mode="json"))


def write_study(study_dir: Path, record: StudyRecord) -> None:
    """Replace `study.json`."""
    write_record(study_dir / STUDY_FILE, record)


def read_settings(study_dir: Path) -> StudySettings:
    """Read `study.yaml`, as strictly as a config. Refuse a link in its place."""
    check_files([], [study_dir / SETTINGS_FILE])
    layer = read_yaml(study_dir / SETTINGS_FILE)
    try:
        return StudySettings(**layer.values)
    except ConfigError as error:
        raise ConfigError(f"{study_dir / SETTINGS_FILE}: {error}") from None


def read_study(study_dir: Path) -> StudyRecord:
    """Read `study.json`. Refuse another format, trials that no study can have written, and links in place of files."""
    record = read_record(study_dir / STUDY_FILE, StudyRecord, "study", _STUDY_LIMIT)
    _check_trials(study_dir, record)
    runs = [(trial, run) for trial in record.trials for run in trial.runs]
    folders = [LOGS_FOLDER, CONFIRMATION_FOLDER, *(run.run_dir for _, run in runs)]
    files = [study_dir / BEST_FILE, *(trial_log(study_dir, trial, run) for trial, run in runs)]
    check_files([study_dir / folder for folder in folders], files)
    return record


def _check_trials(study_dir: Path, record: StudyRecord) -> None:
    numbers = [trial.number for trial in record.trials]
    if numbers != list(range(len(numbers))):
        problem = "the trials are not numbered from 0"
    elif any(not trial.runs for trial in record.trials):
        problem = "a trial has no run"
    elif record.best_trial is not None and not 0 <= record.best_trial < len(numbers):
        problem = f"best_trial={record.best_trial} does not exist"
    elif record.best_trial is not None and not record.trials[record.best_trial].values:
        problem = f"best_trial={record.best_trial} has no value"
    else:
        return
    raise RunDirectoryError(f"{study_dir / STUDY_FILE} is damaged: {problem}")


def job_name(number: int, seed: int) -> str:
    """Return the name of the job that trains one run of a trial."""
    return f"trial{number}-seed{seed}"


def trial_log(study_dir: Path, trial: Trial, run: TrialRun) -> Path:
    """Return the path of the file with the output of one run of a trial."""
    return study_dir / LOGS_FOLDER / f"trial{trial.number:04d}_seed{run.seed}.log"
