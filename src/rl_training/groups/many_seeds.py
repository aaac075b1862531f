"""Train one config with many seeds: a group of runs, each in its own process, trained and resumed together."""

import multiprocessing
import signal
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rl_training.cores import available_cores
from rl_training.envs.factory import resolve_action_mask
from rl_training.errors import ConfigError, RunDirectoryError, TrainingInterrupted, TrainingStateError, describe_error
from rl_training.experiment.config import TrainConfig, plain_config, with_resolved_params
from rl_training.experiment.groups import (
    GROUP_FILE,
    GroupRecord,
    SeedRecord,
    checked_seeds,
    create_group,
    extended_group,
    log_path,
    read_group,
    read_group_config,
    read_outcome,
    seed_config,
    with_outcome,
    write_group,
    write_group_config,
)
from rl_training.experiment.locking import RunLock
from rl_training.experiment.records import PlaceName
from rl_training.experiment.runs import check_output_dir
from rl_training.groups.executor import Executor, RunEvent, Started, collected_signals, run_jobs
from rl_training.groups.jobs import Jobs, Outcome, ProgressUpdate, RunJob, in_run_process
from rl_training.groups.observer import GroupObserver, SeedProgress, SilentObserver
from rl_training.groups.places import Here, Place, open_place, place_name
from rl_training.limits import check_open_files
from rl_training.memory import check_memory
from rl_training.runtime.callbacks import StopRules
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.run_utils import describe_origin, now
from rl_training.runtime.training import with_resolved_compile
from rl_training.signals import reported_signal

_FILES_PER_RUN = 4


@dataclass(frozen=True)
class GroupResult:
    """The directory of a group and the results of its seeds."""

    group_dir: Path
    record: GroupRecord

    @property
    def returns(self) -> dict[int, float]:
        """Final mean returns by seed, without the seeds that have none."""
        found = {each.seed: each.final_return for each in self.record.seeds}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class PreparedGroup:
    """A group directory that is ready to be trained or resumed."""

    group_dir: Path
    record: GroupRecord
    config: TrainConfig
    """The config of all runs; its seed is not used."""


def resolve_jobs(jobs: Jobs, num_seeds: int, num_threads: int | Literal["auto"] = 1, on: PlaceName = "here") -> int:
    """Return how many seeds to train at the same time, at most `num_seeds`.

    `auto` fills the available cores here. On Ray it sets no limit, because the cluster may grow.
    """
    threads = 1 if num_threads == "auto" else num_threads
    most = num_seeds if on == "ray" else max(1, available_cores() // threads)
    count = most if jobs == "auto" else jobs
    if count < 1:
        raise ConfigError(f"jobs={count}: give auto, or a number of processes of at least 1")
    count = min(count, num_seeds)
    if on == "here":
        check_open_files(_FILES_PER_RUN * count, f"{count} runs at once", f"lower --jobs (now {count})")
    return count


def train_seeds(
    config: TrainConfig,
    seeds: Iterable[int],
    jobs: Jobs = "auto",
    *,
    on: str = "here",
    stop: StopRules | None = None,
    observer: GroupObserver | None = None,
) -> GroupResult:
    """Train one run per seed; each ends with the same weights as if it had been trained alone.

    `on` is `here`, or `ray` for a cluster at the config's `ray_address`, or `ray=ADDRESS` for another one.
    A seed that fails does not stop the others. A script must call this below `if __name__ == "__main__":`, because
    the process of each seed imports the script.
    """
    with open_place(on, config) as place:
        return run_group(prepare_group(config, seeds, jobs, stop or StopRules(), place), observer, place)


def resume_seeds(
    group_dir: Path,
    jobs: Jobs | None = None,
    *,
    on: str = "here",
    total_timesteps: int | None = None,
    seeds: Iterable[int] = (),
    observer: GroupObserver | None = None,
) -> GroupResult:
    """Resume the unfinished seeds of a group in place, up to a larger budget and with more seeds if they are given."""
    group = reopen_group(group_dir, jobs, on=place_name(on), total_timesteps=total_timesteps, seeds=seeds)
    if is_complete(group):
        return GroupResult(group.group_dir, group.record)
    with open_place(on, group.config) as place:
        return run_group(group, observer, place)


def prepare_group(
    config: TrainConfig, seeds: Iterable[int], jobs: Jobs, stop: StopRules, place: Place | None = None
) -> PreparedGroup:
    """Create the directory of a new group, after checking that its config can be trained."""
    if in_run_process():
        raise TrainingStateError(
            'the process of a run cannot start a group: train many seeds below `if __name__ == "__main__":`'
        )
    # An env may change the working directory, so the path must be absolute.
    config = config.model_copy(update={"output_dir": config.output_dir.absolute()})
    chosen = checked_seeds(seeds)
    for seed in chosen:
        seed_config(config, seed, config.output_dir)
    stop.callbacks()
    params = get_algorithm_spec(config.algo).resolve_params_fn(config)
    # Decided once for all seeds: the measured cost of compiling may change before the last seed starts.
    config = with_resolved_compile(with_resolved_params(config, params), params)
    config, _ = resolve_action_mask(config, usable=params.uses_action_masks)
    if config.num_threads == "auto":  # the other runs use the other cores
        config = config.model_copy(update={"num_threads": 1})
    about = check_place(config, jobs, len(chosen), place or Here())
    group_dir, record = create_group(config, chosen, stop=asdict(stop), **about)
    return PreparedGroup(group_dir, record, config)


def check_place(config: TrainConfig, jobs: Jobs, num_runs: int, place: Place) -> dict[str, Any]:
    """Check that the place can train the runs; return the part of their record that says how they are trained."""
    count = resolve_jobs(jobs, num_runs, config.num_threads, place.name)
    check_output_dir(config)
    if place.name == "here":
        memory = get_algorithm_spec(config.algo).plan_fn(config).memory_bytes
        check_memory(count * memory, f"{count} runs at once: lower --jobs")
    place.check(config.output_dir)
    return {"jobs": count, "on": place.name, "started_at": now(), **describe_origin(config)}


def reopen_group(
    group_dir: Path,
    jobs: Jobs | None,
    *,
    on: PlaceName = "here",
    total_timesteps: int | None = None,
    seeds: Iterable[int] = (),
) -> PreparedGroup:
    """Read an existing group.

    If `jobs` is None, use as many processes as before, or `auto` if the group trains or last trained on Ray. A larger
    `total_timesteps` and new `seeds` extend the group as soon as it is run.
    """
    group_dir = group_dir.absolute()
    record = read_group(group_dir)
    config = read_group_config(group_dir, record)
    if total_timesteps is not None:
        if total_timesteps < config.total_timesteps:
            budget = config.total_timesteps
            raise ConfigError(f"total_timesteps={total_timesteps}: the group has {budget}; give a larger budget")
        config = TrainConfig(**{**plain_config(config), "total_timesteps": total_timesteps})
    record = extended_group(record, config, group_dir, seeds)
    before: Jobs = record.jobs if record.on == on == "here" else "auto"
    count = resolve_jobs(before if jobs is None else jobs, len(record.seeds), config.num_threads, on)
    try:
        StopRules(**record.stop).callbacks()
    except (ConfigError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{group_dir / GROUP_FILE} is damaged: stop: {error}") from None
    return PreparedGroup(group_dir, record.model_copy(update={"jobs": count, "on": on}), config)


def is_complete(group: PreparedGroup) -> bool:
    """Return whether the group has ended and all its runs are finished."""
    left = [read_outcome(group.group_dir, each, group.config.total_timesteps) for each in group.record.seeds]
    return group.record.status == "completed" and all(record.done for record in left)


def run_group(group: PreparedGroup, observer: GroupObserver | None = None, place: Place | None = None) -> GroupResult:
    """Train all unfinished seeds; on a signal, raise `TrainingInterrupted` after every running seed has saved."""
    place = place or Here()
    place.check(group.group_dir)
    lock = RunLock(group.group_dir).acquire()
    try:
        return _GroupRun(group, observer or SilentObserver(), place.make_executor()).run()
    finally:
        lock.release()


class _GroupRun:
    """A group in training: updates `group.json` and the observer from the events of its runs."""

    def __init__(self, group: PreparedGroup, observer: GroupObserver, executor: Executor) -> None:
        self._group = group
        self._observer = observer
        self._executor = executor
        self._signal_announced = False
        # Read again, because another process may have changed it before the lock was taken.
        newest, budget = {each.seed: each for each in read_group(group.group_dir).seeds}, group.config.total_timesteps
        seeds = {each.seed: each for each in group.record.seeds} | newest
        left = tuple(read_outcome(group.group_dir, each, budget) for each in seeds.values())
        self._record = group.record.model_copy(update={"seeds": left, "status": "running", "ended_at": None})
        self._progress = {each.seed: SeedProgress.from_record(each, budget) for each in left}

    def run(self) -> GroupResult:
        """Train until the last seed has ended."""
        jobs = iter([self._job(record) for record in self._record.seeds if not record.done])
        if read_group(self._group.group_dir).total_timesteps != self._record.total_timesteps:
            write_group_config(self._group.group_dir, self._group.config)
        self._write()
        with collected_signals() as signals:
            self._observer.on_group_start(self._group.group_dir, self._record)
            try:
                loop = run_jobs(lambda: next(jobs, None), self._executor, self._record.jobs, signals)
                with closing(loop) as events:
                    for event in events:
                        self._handle(event, signals)
            finally:
                self._observer.on_group_end(list(self._progress.values()))
        self._finish(signals)
        return GroupResult(self._group.group_dir, self._record)

    def _announce_signal(self, signals: list[int]) -> None:
        if signals and not self._signal_announced:
            self._signal_announced = True
            name = signal.Signals(signals[0]).name
            self._observer.on_message(f"{name}: the running seeds save and stop; a second signal kills them")

    def _job(self, record: SeedRecord) -> RunJob:
        group_dir = self._group.group_dir
        return RunJob(
            name=str(record.seed),
            config=seed_config(self._group.config, record.seed, group_dir),
            run_dir=group_dir / record.run_dir,
            run_suffix=record.run_dir.rpartition("__")[2],
            log_path=log_path(group_dir, record.seed),
            stop=StopRules(**self._record.stop),
            start_method=multiprocessing.get_start_method(),
            make_callback=self._observer.make_seed_callback,
        )

    def _handle(self, event: tuple[str, RunEvent] | None, signals: list[int]) -> None:
        if event is None:
            self._announce_signal(signals)
        else:
            self._apply_event(int(event[0]), event[1])
        self._observer.on_progress(list(self._progress.values()))

    def _apply_event(self, seed: int, event: RunEvent) -> None:
        progress = self._progress[seed]
        if isinstance(event, ProgressUpdate):
            progress.advance(event.step, event.metrics, time.monotonic())
        else:
            self._record_event(seed, event)
            progress.apply_record(self._seed_record(seed))
        if isinstance(event, Outcome):
            self._observer.on_seed_end(progress)

    def _record_event(self, seed: int, event: Started | Outcome) -> None:
        record = self._seed_record(seed)
        if isinstance(event, Outcome):
            record = with_outcome(self._group.group_dir, record, event.status, event.reason)
        else:
            record = record.model_copy(update={"status": "running", "reason": None})
        self._record = self._record.with_seed(record)
        self._write()

    def _write(self) -> None:
        """Write `group.json`; a full disk must not end the group, because each run also stores its own status."""
        try:
            write_group(self._group.group_dir, self._record)
        except OSError as error:
            self._observer.on_message(f"{self._group.group_dir / GROUP_FILE} was not written: {describe_error(error)}")

    def _seed_record(self, seed: int) -> SeedRecord:
        return next(record for record in self._record.seeds if record.seed == seed)

    def _finish(self, signals: list[int]) -> None:
        """Write the final status of the group; raise `TrainingInterrupted` if a signal left seeds unfinished."""
        done = sum(record.done for record in self._record.seeds)
        total = len(self._record.seeds)
        interrupted = bool(signals) and done < total
        status = "interrupted" if interrupted else "completed" if done == total else "failed"
        self._record = self._record.model_copy(update={"status": status, "ended_at": now()})
        self._write()
        if interrupted:
            number = reported_signal(signals[0])
            message = f"interrupted with {done} of {total} seeds done"
            raise TrainingInterrupted(f"{message}; continue with: rl-training resume {self._group.group_dir}", number)
