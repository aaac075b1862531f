"""One seed of a group, inside its process: an ordinary run that reports to the process that owns the group."""

import multiprocessing
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from rl_training.errors import TrainingInterrupted, describe_error
from rl_training.experiment.checkpointing import step_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import open_regular, set_aside
from rl_training.experiment.groups import SeedStatus
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import RunContext, context_of
from rl_training.experiment.sources import Layer
from rl_training.output import drop_lost_output
from rl_training.processes import kill_descendants
from rl_training.results.drawing import plot_run
from rl_training.runtime.callbacks import Callback, StopRules
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.types import MetricDict
from rl_training.runtime.workflows import prepare_resume
from rl_training.signals import heeded_signals

_BEAT_SECONDS = 0.25
_NAME = "seed-"


@dataclass(frozen=True)
class SeedJob:
    """What a process is to train, or to go on with if there is something to go on with."""

    config: TrainConfig
    run_dir: Path
    """Inside the config's output directory."""
    run_suffix: str
    """The last part of the directory's name."""
    log_path: Path
    stop: StopRules
    start_method: str
    """Of the env workers, as a single run would start them."""
    make_callback: Callable[[], Callback] | None
    """Makes the callback that reports the run's progress in its log."""


@dataclass(frozen=True)
class Beat:
    """How far a run is, and its newest numbers."""

    step: int
    metrics: MetricDict


@dataclass(frozen=True)
class Ending:
    """How a run ended; a process that is killed has no time to say it."""

    status: SeedStatus
    reason: str | None = None


class OwnerLink(Callback):
    """Tells the owner how far the run is; without an owner, the run saves its state and ends."""

    def __init__(self, owner: Connection) -> None:
        self._owner = owner
        self._told_at = 0.0

    def on_train_start(self, trainer: TrainerState) -> None:
        """Begin to listen and to tell."""
        _heed_the_first_signal_only()
        self._tell(trainer)

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Tell, now and then."""
        del result
        if time.monotonic() - self._told_at >= _BEAT_SECONDS:
            self._tell(trainer)

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Tell at once."""
        del metrics
        self._tell(trainer)

    def _tell(self, trainer: TrainerState) -> None:
        self._told_at = time.monotonic()
        _, writable, _ = select.select([], [self._owner], [], 0.0)
        if not writable:  # an owner that was suspended must not hold the run up
            return
        try:
            self._owner.send(Beat(trainer.global_step, dict(trainer.metrics)))
        except OSError:
            signal.raise_signal(signal.SIGTERM)


def process_name(seed: int) -> str:
    """What the process of a seed is called."""
    return f"{_NAME}{seed}"


def in_seed_process() -> bool:
    """Whether this code runs in the process of a seed, as a script does that such a process imports."""
    return multiprocessing.current_process().name.startswith(_NAME)


def _heed_the_first_signal_only() -> None:
    """A scheduler signals every process of a job, and the owner passes its own signal on: a second is no impatience.

    Who is impatient kills through the owner.
    """
    heeded: list[int] = []
    answer = signal.getsignal(signal.SIGTERM)

    def heed(number: int, frame: FrameType | None) -> None:
        if not heeded and callable(answer):
            heeded.append(number)
            answer(number, frame)

    for number in heeded_signals():
        signal.signal(number, heed)


def live(job: SeedJob, owner: Connection) -> None:
    """The life of the process."""
    os.setpgid(0, 0)  # what a terminal sends to its foreground group is for the owner to pass on
    multiprocessing.set_start_method(job.start_method, force=True)
    drop_lost_output()
    _print_to(job.log_path)
    try:
        reporting = [job.make_callback()] if job.make_callback else []
        ending = _train(job, [*reporting, OwnerLink(owner), *job.stop.callbacks()])
        with suppress(OSError):
            owner.send(ending)
        if ending.status in ("completed", "stopped"):
            plot_run(context_of(job.run_dir))
    finally:
        kill_descendants(os.getpid())  # what an env has started and not ended


def _print_to(path: Path) -> None:
    """Append what is printed from here on, by C libraries too; without the file it goes where the owner prints."""
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        warnings.warn(f"{path} cannot be written: {error.strerror}", stacklevel=2)
        return
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(descriptor, number)
    os.close(descriptor)


def _train(job: SeedJob, callbacks: Sequence[Callback]) -> Ending:
    try:
        context = context_of(job.run_dir)
        if not step_checkpoints(context.checkpoints_dir):
            _set_aside(context)
            train = get_algorithm_spec(job.config.algo).train_fn
            return Ending(train(job.config, run_suffix=job.run_suffix, callbacks=callbacks).status)
        # A checkpoint that names another environment is refused: only the group's own was admitted.
        same_env = Layer("group", {"env_id": job.config.env_id})
        return Ending(prepare_resume(job.run_dir, [same_env]).train(callbacks=callbacks).status)
    except TrainingInterrupted as error:
        print(error, file=sys.stderr)
        return Ending("interrupted", signal.Signals(error.signal_number).name)
    except KeyboardInterrupt:  # before the run listened
        return Ending("interrupted", signal.SIGINT.name)
    except Exception as error:
        traceback.print_exc()
        return Ending("failed", describe_error(error))


def _set_aside(context: RunContext) -> None:
    """Make room for a new run where an earlier one left no checkpoint to go on from; nothing of it is removed."""
    if context.run_dir.exists():
        RunLock(context.run_dir).acquire().release()  # refuses if somebody is just about to begin there
        aside = set_aside(context.run_dir, "set-aside")
        reason = f"{context.run_dir} has no checkpoint to go on from"
        warnings.warn(f"{reason}: it is set aside as {aside.name}, and the seed starts again", stacklevel=2)
