"""A run from its directory's creation to its last callback, however it ends."""

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

from rl_training.envs.vector import calls_of
from rl_training.errors import RLTrainingError, TrainingInterrupted
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import update_metadata
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.exactness import check_replays, find_differences
from rl_training.runtime.run_utils import (
    create_training_run,
    note_resume,
    refusing_misfits,
    reopen_training_run,
)
from rl_training.runtime.saved import ResumeNote, SavedProgress
from rl_training.runtime.session import TrainingParts, TrainingSession
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.watchdog import Watchdog

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PATIENCE_SECONDS = 4.0  # who sends SIGTERM sends SIGKILL some seconds later


@dataclass(frozen=True)
class RunOptions:
    """Where a run lives, what it starts from, and who is told."""

    run_suffix: str | None
    checkpoint_state: CheckpointState | None
    callbacks: CallbackList
    output_dir: Path
    """The absolute place of a new run directory."""
    lock: RunLock | None
    """Continue in the directory that this lock holds instead of creating one; needs `checkpoint_state`."""
    decisions: dict[str, str | None] = field(default_factory=dict)
    """By field of the config, where it said `auto`: what it came to, and why."""
    scheduled: Sequence[str] = ()
    """The parameters of the algorithm whose values depend on the planned budget."""


def run_training(
    config: TrainConfig, parts: TrainingParts, loop: Callable[[TrainingSession], None], options: RunOptions
) -> TrainResult:
    """Run `loop` inside a session, from the run directory's creation to the last callback."""
    with Watchdog(config, calls_of(parts.envs)) as watchdog:
        session = _open_session(config, parts, options)
        watchdog.watch(session.evaluator.calls)
        watchdog.rescue = session.rescue
        return _run_session(session, loop, options)


def _run_session(session: TrainingSession, loop: Callable[[TrainingSession], None], options: RunOptions) -> TrainResult:
    session.note_decisions(options.decisions)
    try:
        with _stop_signals(session):
            options.callbacks.on_train_start(session.state)
            session.begin()
            loop(session)
            result = session.finish()
    except BaseException as error:
        session.fail(error)
        if isinstance(error, RLTrainingError):
            error.ended_run = True
        raise
    finally:
        session.close()
    if session.signal_number is not None:
        message = f"interrupted at step {session.state.global_step}; saved {result.checkpoint_path}"
        raise TrainingInterrupted(message, session.signal_number)
    return result


def _open_session(config: TrainConfig, parts: TrainingParts, options: RunOptions) -> TrainingSession:
    """Everything that can go wrong in setting up does so before the directory is made."""
    saved = options.checkpoint_state
    if saved is None:
        obs, _ = parts.envs.reset()
        run = create_training_run(config, options.run_suffix, output_dir=options.output_dir)
        return TrainingSession(config, parts, run, options.callbacks, obs)
    with refusing_misfits(config):
        progress = SavedProgress.from_state(saved.trainer_state)
        parts.learner.load_state_dict(saved.algorithm_state)
        parts.buffer.load_state_dict(saved.buffer_state)
        unrepeatable = check_replays(config, progress)  # before the envs of this process do anything
        restoration = parts.envs.restore(progress.envs, progress.obs)
        parent = {"run_id": saved.metadata["run_id"], "step": progress.global_step}
    failures = [f"env {index} began a new episode, because {why}" for index, why in restoration.failures.items()]
    differences = find_differences(config, saved, options.scheduled)
    note = ResumeNote(progress.global_step, (*failures, *unrepeatable, *differences))
    if failures or unrepeatable:
        warnings.warn(str(note), stacklevel=2)
    if failures:
        parts.buffer.cut(list(restoration.failures), progress.obs)
        parts.learner.begin_episodes(np.isin(np.arange(parts.envs.num_envs), list(restoration.failures)))
        progress = progress.without_actions()
    if options.lock is not None:
        run = reopen_training_run(options.lock, config, note)
        run.segments.adopt(saved.buffer_state)
    else:
        run = create_training_run(config, options.run_suffix, output_dir=options.output_dir)
        update_metadata(run.run_context, parent=parent)
        note_resume(run.run_context, note)
        progress = progress.forked()
    session = TrainingSession(config, parts, run, options.callbacks, restoration.obs, progress=progress)
    session.state.resumed = note
    session.was_compiled = config.compile == "on" and saved.metadata.get("packages") is not None
    return session


@contextmanager
def _stop_signals(session: TrainingSession) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGUSR1 asks the loop to stop and save, the next one stops at once.

    What does not come to a point where it can stop, a long update or a hanging env, is given up after a while: the
    newest checkpoint is then the one to go on from.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if session.signal_number is not None:
            raise KeyboardInterrupt
        # Schedulers announce the end of a job by SIGUSR1: it is a polite SIGTERM.
        session.signal_number = signal.SIGTERM if number == signal.SIGUSR1 else number
        session.state.request_stop(signal.Signals(number).name)
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_SECONDS, _PATIENCE_SECONDS)

    def give_up(number: int, frame: FrameType | None) -> None:
        del number, frame
        if session.signal_number is not None and not session.saving:
            message = f"interrupted after step {session.state.global_step}, which could not be waited for"
            raise TrainingInterrupted(message, session.signal_number)

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, give_up)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
