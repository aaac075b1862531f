"""Many seeds of one config: a group of ordinary runs in processes of their own, trained and resumed together."""

import multiprocessing
import signal
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rl_training.cores import available_cores
from rl_training.errors import ConfigError, RunDirectoryError, TrainingInterrupted, TrainingStateError, describe_error
from rl_training.experiment.config import TrainConfig, with_resolved_params
from rl_training.experiment.groups import (
    GROUP_FILE,
    GroupRecord,
    SeedRecord,
    checked_seeds,
    create_group,
    log_path,
    read_group,
    read_group_config,
    read_outcome,
    seed_config,
    with_outcome,
    write_group,
)
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import check_output_dir
from rl_training.groups.observer import GroupObserver, SeedProgress, SilentObserver
from rl_training.groups.seed_pool import SeedEvent, Start, collected_signals, run_at_once
from rl_training.groups.seed_process import Beat, Ending, SeedJob, in_seed_process
from rl_training.limits import check_open_files
from rl_training.memory import check_memory
from rl_training.runtime.callbacks import StopRules
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.run_utils import describe_origin, now
from rl_training.runtime.training import with_resolved_compile
from rl_training.signals import reported_signal

Jobs = int | Literal["auto"]

_FILES_PER_RUN = 4


@dataclass(frozen=True)
class GroupResult:
    """Where a group lies, and how its seeds ended."""

    group_dir: Path
    record: GroupRecord

    @property
    def returns(self) -> dict[int, float]:
        """The final mean return of every seed that has one."""
        found = {each.seed: each.final_return for each in self.record.seeds}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class PreparedGroup:
    """A group on disk that is ready to train, or to go on."""

    group_dir: Path
    record: GroupRecord
    config: TrainConfig
    """Of all its runs; the seed does not count."""


def resolve_jobs(jobs: Jobs, num_seeds: int, num_threads: int | Literal["auto"] = 1) -> int:
    """How many processes at once: `auto` is as many as there are cores for their threads, never more than seeds."""
    threads = 1 if num_threads == "auto" else num_threads
    count = max(1, available_cores() // threads) if jobs == "auto" else jobs
    if count < 1:
        raise ConfigError(f"jobs={count}: give auto, or at least 1 process")
    most = min(count, num_seeds)
    check_open_files(_FILES_PER_RUN * most, f"{most} runs at once", f"lower --jobs (now {most})")
    return most


def train_seeds(
    config: TrainConfig,
    seeds: Iterable[int],
    jobs: Jobs = "auto",
    *,
    stop: StopRules | None = None,
    observer: GroupObserver | None = None,
) -> GroupResult:
    """Train a run per seed; each ends with the weights that it would have got on its own.

    A seed that fails does not stop the others. A script must call this below `if __name__ == "__main__":`, because
    the processes import it.
    """
    return run_group(prepare_group(config, seeds, jobs, stop or StopRules()), observer)


def resume_seeds(group_dir: Path, jobs: Jobs | None = None, *, observer: GroupObserver | None = None) -> GroupResult:
    """Go on with every seed of a group that is not done: in place, to the last bit."""
    group = reopen_group(group_dir, jobs)
    return GroupResult(group.group_dir, group.record) if is_complete(group) else run_group(group, observer)


def prepare_group(config: TrainConfig, seeds: Iterable[int], jobs: Jobs, stop: StopRules) -> PreparedGroup:
    """Make the directory of a new group; what no seed could train is refused before."""
    if in_seed_process():
        raise TrainingStateError('begun by a seed: train many seeds below `if __name__ == "__main__":`')
    config = config.model_copy(update={"output_dir": config.output_dir.absolute()})  # an env may change the directory
    chosen = checked_seeds(seeds)
    for seed in chosen:
        seed_config(config, seed, config.output_dir)
    stop.callbacks()
    spec = get_algorithm_spec(config.algo)
    params = spec.resolve_params_fn(config)
    # Decided here for all: what compiling costs may be known better when the last seed starts.
    config = with_resolved_compile(with_resolved_params(config, params), params)
    if config.num_threads == "auto":  # the runs beside it use the other cores
        config = config.model_copy(update={"num_threads": 1})
    count = resolve_jobs(jobs, len(chosen), config.num_threads)
    check_output_dir(config)
    check_memory(count * spec.plan_fn(config).memory_bytes, f"{count} runs at once: lower --jobs")
    about = {"jobs": count, "stop": asdict(stop), "started_at": now(), **describe_origin(config.env_id)}
    group_dir, record = create_group(config, chosen, **about)
    return PreparedGroup(group_dir, record, config)


def reopen_group(group_dir: Path, jobs: Jobs | None) -> PreparedGroup:
    """Read a group that was trained before; without `jobs`, as many processes as then."""
    group_dir = group_dir.absolute()
    record = read_group(group_dir)
    config = read_group_config(group_dir, record)
    count = resolve_jobs(record.jobs if jobs is None else jobs, len(record.seeds), config.num_threads)
    try:
        StopRules(**record.stop).callbacks()
    except (ConfigError, TypeError) as error:
        raise RunDirectoryError(f"{group_dir / GROUP_FILE} is damaged: stop: {error}") from None
    return PreparedGroup(group_dir, record.model_copy(update={"jobs": count}), config)


def is_complete(group: PreparedGroup) -> bool:
    """Return whether the group has ended and none of its runs has anything left to do."""
    left = [read_outcome(group.group_dir, record) for record in group.record.seeds]
    return group.record.status == "completed" and all(record.done for record in left)


def run_group(group: PreparedGroup, observer: GroupObserver | None = None) -> GroupResult:
    """Train all seeds that are not done; a signal is raised as `TrainingInterrupted` when all have saved."""
    lock = RunLock(group.group_dir).acquire()
    try:
        return _GroupRun(group, observer or SilentObserver()).run()
    finally:
        lock.release()


class _GroupRun:
    """A group in progress: keeps `group.json` and the observer up to date with what the processes tell."""

    def __init__(self, group: PreparedGroup, observer: GroupObserver) -> None:
        self._group = group
        self._observer = observer
        self._announced = False
        # Read again, now that nobody else can change it.
        left = tuple(read_outcome(group.group_dir, record) for record in read_group(group.group_dir).seeds)
        self._record = group.record.model_copy(update={"seeds": left, "status": "running", "ended_at": None})
        self._progress = {each.seed: SeedProgress.of(each, group.record.total_timesteps) for each in left}

    def run(self) -> GroupResult:
        """To the end of the last seed."""
        jobs = [self._job(record) for record in self._record.seeds if not record.done]
        self._write()
        with collected_signals() as signals:
            self._observer.begin(self._group.group_dir, self._record)
            try:
                with closing(run_at_once(jobs, self._record.jobs, signals)) as events:
                    for event in events:
                        self._take(event, signals)
            finally:
                self._observer.end(list(self._progress.values()))
        self._finish(signals)
        return GroupResult(self._group.group_dir, self._record)

    def _announce(self, signals: list[int]) -> None:
        if signals and not self._announced:
            self._announced = True
            name = signal.Signals(signals[0]).name
            self._observer.say(f"{name}: the running seeds save and end; another one kills them")

    def _job(self, record: SeedRecord) -> SeedJob:
        group_dir = self._group.group_dir
        return SeedJob(
            config=seed_config(self._group.config, record.seed, group_dir),
            run_dir=group_dir / record.run_dir,
            run_suffix=record.run_dir.rpartition("__")[2],
            log_path=log_path(group_dir, record.seed),
            stop=StopRules(**self._record.stop),
            start_method=multiprocessing.get_start_method(),
            make_callback=self._observer.make_seed_callback,
        )

    def _take(self, event: tuple[int, SeedEvent] | None, signals: list[int]) -> None:
        if event is None:
            self._announce(signals)
        else:
            self._hear(*event)
        self._observer.update(list(self._progress.values()))

    def _hear(self, seed: int, event: SeedEvent) -> None:
        progress = self._progress[seed]
        if isinstance(event, Beat):
            progress.advance(event.step, event.metrics, time.monotonic())
        else:
            self._note(seed, event)
            progress.apply_record(self._seed(seed))
        if isinstance(event, Ending):
            self._observer.ended(progress)

    def _note(self, seed: int, event: Start | Ending) -> None:
        record = self._seed(seed)
        if isinstance(event, Ending):
            record = with_outcome(self._group.group_dir, record, event.status, event.reason)
        else:
            record = record.model_copy(update={"status": "running", "reason": None})
        self._record = self._record.with_seed(record)
        self._write()

    def _write(self) -> None:
        """A disk that is full for a moment must not end the group: its runs say themselves how they stand."""
        try:
            write_group(self._group.group_dir, self._record)
        except OSError as error:
            self._observer.say(f"{self._group.group_dir / GROUP_FILE} was not written: {describe_error(error)}")

    def _seed(self, seed: int) -> SeedRecord:
        return next(record for record in self._record.seeds if record.seed == seed)

    def _finish(self, signals: list[int]) -> None:
        """Write how the group ended, and raise the signal that kept it from being done."""
        done = sum(record.done for record in self._record.seeds)
        total = len(self._record.seeds)
        interrupted = bool(signals) and done < total
        status = "interrupted" if interrupted else "completed" if done == total else "failed"
        self._record = self._record.model_copy(update={"status": status, "ended_at": now()})
        self._write()
        if interrupted:
            number = reported_signal(signals[0])
            message = f"interrupted with {done} of {total} seeds done"
            raise TrainingInterrupted(f"{message}; go on with: rl-training resume {self._group.group_dir}", number)
