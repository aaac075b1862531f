"""Hyper-parameter search: trials that are paused, promoted and resumed exactly, and a confirmation on new seeds."""

import math
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from rl_training.envs.factory import resolve_action_mask
from rl_training.errors import (
    ConfigError,
    Problem,
    RunDirectoryError,
    TrainingInterrupted,
    TrainingStateError,
    describe_error,
)
from rl_training.experiment.config import TrainConfig, plain_config, with_resolved_params
from rl_training.experiment.files import write_text
from rl_training.experiment.groups import GROUP_FILE
from rl_training.experiment.locking import RunLock
from rl_training.experiment.metrics import describe_missing, result_name
from rl_training.experiment.records import PlaceName, check_files
from rl_training.experiment.runs import context_of, read_intact_metadata
from rl_training.experiment.search_space import SearchSpace, load_space, read_space
from rl_training.experiment.sources import Layer, located
from rl_training.experiment.studies import (
    BEST_FILE,
    CONFIRMATION_FOLDER,
    SETTINGS_FILE,
    STUDY_FILE,
    StudyOptions,
    StudyRecord,
    StudySettings,
    Trial,
    TrialRun,
    create_study,
    job_name,
    make_trial,
    read_settings,
    read_study,
    trial_log,
    write_settings,
    write_study,
)
from rl_training.experiment.validation import config_error
from rl_training.groups.executor import RunEvent, collected_signals, run_jobs
from rl_training.groups.halving import find_best, find_last_promotion, find_promotion
from rl_training.groups.jobs import LOCK_SECONDS, Jobs, Outcome, ProgressUpdate, RunJob, in_run_process
from rl_training.groups.many_seeds import check_place, prepare_group, reopen_group, resolve_jobs, run_group
from rl_training.groups.observer import SeedProgress, SilentStudyObserver, StudyObserver
from rl_training.groups.places import Here, Place, open_place, place_name
from rl_training.groups.suggesting import (
    check_storage,
    count_grid,
    find_importance,
    import_optuna,
    suggest,
    write_to_storage,
)
from rl_training.results.comparison import compare
from rl_training.results.loading import load_group
from rl_training.runtime.callbacks import StopRules
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.run_utils import now
from rl_training.signals import reported_signal

_EVAL_SEED = 0  # for evaluations if the config sets none, so that all trials play the same episodes
_MAX_FIRST_FAILURES = 5  # trials in a row that fail before any has succeeded
_MAX_FAILURES = 10  # trials in a row that fail later; so many are unlikely to fail because of their values


@dataclass(frozen=True)
class PreparedStudy:
    """A study directory that is ready to be run or resumed."""

    study_dir: Path
    settings: StudySettings
    space: SearchSpace
    record: StudyRecord

    @property
    def best_config(self) -> TrainConfig | None:
        """The config of the best trial; none if no trial has a value."""
        best, start = self.record.best_trial, self.settings.train_config
        return None if best is None else self.space.apply(start, self.record.trials[best].params)


@dataclass(frozen=True)
class TuneResult:
    """The directory of a study and what it found."""

    study_dir: Path
    settings: StudySettings
    record: StudyRecord
    best_config: TrainConfig | None
    """The config of the best trial; none if all trials failed."""

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials as rows of a table, as `pandas.DataFrame` accepts them."""
        return [
            {
                "trial": trial.number,
                "status": trial.status(self.settings.rungs),
                "steps": sum(run.steps for run in trial.runs),
                "value": trial.values[-1] if trial.values else None,
                **trial.params,
            }
            for trial in self.record.trials
        ]

    @property
    def confirmation(self) -> dict[str, Any] | None:
        """The comparison of the best config (B) with the starting config (A) on seeds that no trial has used."""
        return self.record.confirmation


def tune(
    config: TrainConfig,
    space: Path | Mapping[str, Any] | None = None,
    *,
    jobs: Jobs = "auto",
    on: str = "here",
    observer: StudyObserver | None = None,
    **options: Any,
) -> TuneResult:
    """Search for better parameters of an algorithm.

    `space` is a file or a map; None stands for the shipped space of the algorithm. `on` is as in `train_seeds`, and
    `options` are those of `StudyOptions`. A script must call this below `if __name__ == "__main__":`, because the
    process of each run imports the script.
    """
    with open_place(on, config) as place:
        return run_study(prepare_study(config, space, jobs, StudyOptions(**options), place), observer, place)


def resume_study(
    study_dir: Path,
    jobs: Jobs | None = None,
    *,
    on: str = "here",
    trials: int | None = None,
    observer: StudyObserver | None = None,
) -> TuneResult:
    """Continue a study, with more trials if they are given."""
    study = reopen_study(study_dir, jobs, on=place_name(on), trials=trials)
    if is_complete(study):
        return TuneResult(study.study_dir, study.settings, study.record, study.best_config)
    with open_place(on, study.settings.train_config) as place:
        return run_study(study, observer, place)


def prepare_study(
    config: TrainConfig,
    space: Path | Mapping[str, Any] | None,
    jobs: Jobs,
    options: StudyOptions,
    place: Place | None = None,
) -> PreparedStudy:
    """Create the directory of a new study, after checking that its space can be searched and its config trained."""
    if in_run_process():
        raise TrainingStateError(
            'the process of a run cannot start a study: call tune below `if __name__ == "__main__":`'
        )
    import_optuna()
    params = get_algorithm_spec(config.algo).resolve_params_fn(config)
    config = with_resolved_params(config.model_copy(update={"output_dir": config.output_dir.absolute()}), params)
    first_rung = options.budgets_of(config.total_timesteps)[0]
    searched = _checked_space(load_space(space, config.algo), config, first_rung)
    config, _ = resolve_action_mask(config, usable=params.uses_action_masks)
    if config.num_threads == "auto":  # the other runs use the other cores
        config = config.model_copy(update={"num_threads": 1})
    settings = StudySettings(**options.model_dump(), config=plain_config(config), space=searched.plain())
    _check_options(settings, searched)
    about = check_place(config, jobs, settings.trials * settings.seeds_per_trial, place or Here())
    study_dir, record = create_study(config.output_dir, settings, **about)
    return PreparedStudy(study_dir, settings, searched, record)


def _checked_space(layer: Layer, config: TrainConfig, first_rung: int) -> SearchSpace:
    """Read a space, and refuse values that the algorithm does not accept."""
    try:
        space = read_space(layer, config)
        _check_values(space, config, first_rung)
    except ConfigError as error:
        raise located(error, [layer]) from None
    return space


def _check_values(space: SearchSpace, config: TrainConfig, first_rung: int) -> None:
    """Try each end of each range and each choice, with all other parameters at their low and at their high ends."""
    resolve = get_algorithm_spec(config.algo).resolve_params_fn
    for side in (0, -1):
        others = {name: values.ends[side] for name, values in space.parameters.items()}
        for name, values in space.parameters.items():
            for value in values.ends:
                try:
                    resolve(space.apply(config, space.limit(config, {**others, name: value}, first_rung)))
                except ConfigError as error:
                    problem = Problem((name,), f"{name}: {value!r} cannot be trained ({error})")
                    raise config_error([problem]) from None


def _check_options(settings: StudySettings, space: SearchSpace) -> None:
    check_storage(settings)
    if settings.budgets[0] < 1 or len(set(settings.budgets)) < settings.rungs:
        raise ConfigError(
            f"total_timesteps={settings.budgets[-1]} is too small for {settings.rungs} rungs: lower rungs"
        )
    if settings.sampler == "grid" and count_grid(space) < settings.trials:
        raise ConfigError(f"trials={settings.trials}: the grid has only {count_grid(space)} points")
    if settings.sampler == "cmaes":
        suggest(settings, space, ())


def reopen_study(
    study_dir: Path, jobs: Jobs | None, *, on: PlaceName = "here", trials: int | None = None
) -> PreparedStudy:
    """Read an existing study.

    If `jobs` is None, use as many processes as before, or `auto` if the study trains or last trained on Ray.
    """
    study_dir = study_dir.absolute()
    import_optuna()
    settings, record = read_settings(study_dir), read_study(study_dir)
    if record.settings_sha256 not in (None, settings.sha256):
        raise RunDirectoryError(
            f"{study_dir / SETTINGS_FILE} was changed after the study had begun: undo the change, or start a new study"
        )
    if trials is not None:
        if trials < len(record.trials):
            raise ConfigError(f"trials={trials}: the study has {len(record.trials)} already; give a larger number")
        settings = StudySettings(**{**settings.model_dump(), "trials": trials})
    space = _checked_space(Layer("space", settings.space), settings.train_config, settings.budgets[0])
    _check_options(settings, space)
    before: Jobs = record.jobs if record.on == on == "here" else "auto"
    most, threads = settings.trials * settings.seeds_per_trial, settings.train_config.num_threads
    count = resolve_jobs(before if jobs is None else jobs, most, threads, on)
    return PreparedStudy(study_dir, settings, space, record.model_copy(update={"jobs": count, "on": on}))


def is_complete(study: PreparedStudy) -> bool:
    """Return whether a study has nothing left to do."""
    return study.record.status == "completed" and len(study.record.trials) >= study.settings.trials


def run_study(study: PreparedStudy, observer: StudyObserver | None = None, place: Place | None = None) -> TuneResult:
    """Train all trials and confirm the best; on a signal, raise `TrainingInterrupted` after every run has saved."""
    place = place or Here()
    place.check(study.study_dir)
    lock = RunLock(study.study_dir).acquire()
    try:
        return _StudyRun(study, observer or SilentStudyObserver(), place).run()
    finally:
        lock.release()


class _StudyRun:
    """A study in progress: chooses, promotes and records its trials."""

    def __init__(self, study: PreparedStudy, observer: StudyObserver, place: Place) -> None:
        self._study_dir, self._settings, self._space = study.study_dir, study.settings, study.space
        self._observer, self._place = observer, place
        newest = read_study(study.study_dir)  # again, because another process may have changed it before the lock
        place_now = {"jobs": study.record.jobs, "on": study.record.on}
        self._record = newest.model_copy(update={**place_now, "status": "running", "ended_at": None})
        self._signal_announced = False
        self._waiting: deque[tuple[int, int]] = deque()  # (trial, seed) of the runs that are to start next
        self._running: dict[str, tuple[int, int]] = {}  # (trial, seed) by the name of the job
        self._progress: dict[str, SeedProgress] = {}
        for trial in self._record.trials:
            self._enqueue(trial)

    def run(self) -> TuneResult:
        """Run the trials that are left, then the confirmation."""
        with _explained(self._study_dir / SETTINGS_FILE):
            write_settings(self._study_dir, self._settings)  # a resume may have raised the number of trials
        self._write()
        self._observer.on_study_start(self._study_dir, self._settings, self._record)
        try:
            with collected_signals() as signals:
                self._run_trials(signals)
            if signals:
                raise TrainingInterrupted(self._describe_interruption(), reported_signal(signals[0]))
            if any(trial.unfinished_runs for trial in self._record.trials):
                raise RunDirectoryError(f"a run was interrupted from outside: {self._describe_interruption()}")
            best_config = self._finish_trials()
            if best_config is not None and self._settings.confirm:
                self._confirm(best_config)
            self._write_best(best_config)
        except TrainingInterrupted as error:
            self._end("interrupted")
            raise TrainingInterrupted(self._describe_interruption(), error.signal_number) from None
        except Exception:
            self._end("failed")
            raise
        self._end("completed" if best_config is not None else "failed")
        return TuneResult(self._study_dir, self._settings, self._record, best_config)

    def _run_trials(self, signals: list[int]) -> None:
        loop = run_jobs(self._next_job, self._place.make_executor(), self._record.jobs, signals)
        try:
            with closing(loop) as events:
                for event in events:
                    if event is None:
                        self._announce_signal(signals)
                    else:
                        self._handle(*event)
                    self._observer.on_progress(self._record, self._progress)
        finally:
            self._observer.on_study_end(self._record)

    def _announce_signal(self, signals: list[int]) -> None:
        if signals and not self._signal_announced:
            self._signal_announced = True
            name = signal.Signals(signals[0]).name
            self._observer.on_message(f"{name}: the running trials save and stop; a second signal kills them")

    def _next_job(self) -> RunJob | None:
        """Return the next run: of a trial that has begun, of one that is promoted, or of a new one."""
        if not self._waiting:
            trial = self._next_trial()
            if trial is None:
                return None
            self._update(trial)
            self._enqueue(trial)
        number, seed = self._waiting.popleft()
        trial = self._record.trials[number]
        return self._job(trial, next(run for run in trial.runs if run.seed == seed))

    def _next_trial(self) -> Trial | None:
        trials, settings = self._record.trials, self._settings
        promoted = find_promotion(trials, settings.rungs, settings.reduction)
        if promoted is None and len(trials) < settings.trials:
            drawn = suggest(settings, self._space, trials)
            values = self._space.limit(settings.train_config, drawn, settings.budgets[0])
            return make_trial(settings, len(trials), values)
        if promoted is None and not any(trial.unfinished_runs for trial in trials):
            promoted = find_last_promotion(trials, settings.rungs)
        return promoted.model_copy(update={"rung": promoted.rung + 1}) if promoted else None

    def _enqueue(self, trial: Trial) -> None:
        self._waiting += [(trial.number, run.seed) for run in trial.unfinished_runs]

    def _job(self, trial: Trial, run: TrialRun) -> RunJob:
        name = job_name(trial.number, run.seed)
        budget, is_last = self._settings.budgets[trial.rung], trial.rung == self._settings.rungs - 1
        self._running[name] = trial.number, run.seed
        self._progress[name] = SeedProgress(run.seed, budget, step=run.steps)
        return RunJob(
            name=name,
            config=self._run_config(trial, run.seed),
            run_dir=self._study_dir / run.run_dir,
            run_suffix=run.run_dir.rpartition("__")[2],
            log_path=trial_log(self._study_dir, trial, run),
            stop=StopRules(at_step=None if is_last else budget),
            start_method=multiprocessing.get_start_method(),
            make_callback=self._observer.make_run_callback,
            lock_seconds=LOCK_SECONDS,  # a run of a study that was killed may still be saving
        )

    def _run_config(self, trial: Trial, seed: int) -> TrainConfig:
        """Return the config of one run: evaluated only at the end of a rung, on episodes that all trials share."""
        config = self._space.apply(self._settings.train_config, trial.params)
        return config.model_copy(
            update={
                "seed": seed,
                "output_dir": self._study_dir,
                "eval_interval": 0,
                "eval_episodes": self._settings.episodes,
                "eval_seed": _EVAL_SEED if config.eval_seed is None else config.eval_seed,
            }
        )

    def _handle(self, name: str, event: RunEvent) -> None:
        if isinstance(event, ProgressUpdate):
            self._progress[name].advance(event.step, event.metrics, time.monotonic())
        elif isinstance(event, Outcome):
            del self._progress[name]
            number, seed = self._running.pop(name)
            self._apply_outcome(self._record.trials[number], seed, event)

    def _apply_outcome(self, trial: Trial, seed: int, outcome: Outcome) -> None:
        run = next(each for each in trial.runs if each.seed == seed)
        metadata = read_intact_metadata(context_of(self._study_dir / run.run_dir))  # a run may end before it has any
        run = run.model_copy(update={"steps": int(metadata.get("global_step") or run.steps)})
        if outcome.status == "interrupted":
            self._update(trial.with_run(run))
            return
        value = (metadata.get("metrics") or {}).get(result_name(self._settings.train_config.best_metric))
        if outcome.status != "failed" and value is not None and math.isfinite(value):
            self._update(trial.with_run(run.model_copy(update={"values": (*run.values, float(value))})))
        else:
            self._fail(trial.with_run(run), outcome.reason or self._describe_missing(metadata))

    def _describe_missing(self, metadata: Mapping[str, Any]) -> str:
        return describe_missing(self._settings.train_config.best_metric, metadata.get("metrics") or {})

    def _fail(self, trial: Trial, reason: str) -> None:
        self._waiting = deque(each for each in self._waiting if each[0] != trial.number)
        self._update(trial.model_copy(update={"failure": reason}))
        self._observer.on_message(f"trial {trial.number} failed: {reason}")
        ended = [each for each in self._record.trials if each.failure or each.values]
        in_a_row = len(list(takewhile(lambda each: each.failure, reversed(ended))))
        if in_a_row >= (_MAX_FAILURES if any(each.values for each in ended) else _MAX_FIRST_FAILURES):
            raise RunDirectoryError(f"{in_a_row} trials in a row failed, the last one with: {reason}")

    def _update(self, trial: Trial) -> None:
        self._record = self._record.with_trial(trial)
        best = find_best(self._record.trials)
        number = best.number if best else None
        if number != self._record.best_trial:
            self._record = self._record.model_copy(update={"best_trial": number, "confirmation": None})
        self._write()

    def _write(self) -> None:
        with _explained(self._study_dir / STUDY_FILE):
            write_study(self._study_dir, self._record)

    def _finish_trials(self) -> TrainConfig | None:
        """Record the importance of the parameters, write `best.yaml`, and return the best config."""
        importance = find_importance(self._settings, self._space, self._record.trials)
        self._record = self._record.model_copy(update={"importance": importance})
        self._write()
        best = PreparedStudy(self._study_dir, self._settings, self._space, self._record).best_config
        self._write_best(best)
        return best

    def _confirm(self, best: TrainConfig) -> None:
        """Train the starting config and the best one on new seeds, and compare them, unless that was done before."""
        if self._record.confirmation is not None:
            return
        start = self._settings.train_config
        sides = {"start": start, f"trial{self._record.best_trial:04d}": best}
        a, b = (load_group(self._train_side(label, config), label=label) for label, config in sides.items())
        found = compare(a, b, metric=start.best_metric)
        self._record = self._record.model_copy(update={"confirmation": found.to_json()})

    def _train_side(self, name: str, config: TrainConfig) -> Path:
        folder = self._study_dir / CONFIRMATION_FOLDER / name
        check_files([folder], [])
        groups = [path.parent for path in folder.glob(f"*/{GROUP_FILE}")]
        check_files(groups, [])
        if groups:
            group = reopen_group(groups[0], self._record.jobs, on=self._place.name)
        else:
            episodes = max(config.eval_episodes, self._settings.episodes)
            config = config.model_copy(update={"output_dir": folder, "eval_episodes": episodes})
            seeds, jobs = self._settings.confirmation_seeds, self._record.jobs
            group = prepare_group(config, seeds, jobs, StopRules(), self._place)
        result = run_group(group, self._observer.observe_confirmation(), self._place)
        failed = [record for record in result.record.seeds if not record.done]
        if failed:
            raise RunDirectoryError(f"confirmation: seed {failed[0].seed} {failed[0].status} ({failed[0].reason})")
        return group.group_dir

    def _write_best(self, best: TrainConfig | None) -> None:
        """Write `best.yaml`, with its origin as a comment."""
        if best is None:
            return
        trial = self._record.trials[self._record.best_trial or 0]
        lines = [f"Trial {trial.number} of {len(self._record.trials)} in {self._study_dir.name}: {trial.values[-1]:g}."]
        if self._record.confirmation is not None:
            lines.append(f"On new seeds, with A the starting config: {self._record.confirmation['sentence']}")
        values = {name: value for name, value in plain_config(best).items() if name not in ("seed", "output_dir")}
        text = "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(values, sort_keys=False)
        with _explained(self._study_dir / BEST_FILE):
            write_text(self._study_dir / BEST_FILE, text)

    def _end(self, status: str) -> None:
        self._record = self._record.model_copy(update={"status": status, "ended_at": now()})
        self._write()
        try:
            write_to_storage(self._study_dir, self._settings, self._space, self._record.trials)
        except Exception as error:  # any error of any database; the study itself is safe
            self._observer.on_message(f"Optuna's storage was not written: {describe_error(error)}")

    def _describe_interruption(self) -> str:
        left = f"interrupted with {len(self._record.trials)} of {self._settings.trials} trials begun"
        return f"{left}; continue with: rl-training tune resume {self._study_dir}"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Replace a file system error inside the context by an error that names the file."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(f"{path} was not written: {describe_error(error)}") from None
