"""A run from its directory's creation to its last callback, however it ends."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rl_training.envs.samples import ReplaySample
from rl_training.errors import RLTrainingError, TrainingInterrupted
from rl_training.experiment.checkpointing import CheckpointState, step_checkpoints
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
from rl_training.signals import handling_stop_signals, is_waiting_for_others, reported_signal

_PATIENCE_SECONDS = 4.0  # who sends SIGTERM sends SIGKILL some seconds later
_LOOK_SECONDS = 0.25  # between two looks at what a signal is waiting for
_LONGEST_LOOK = 2.0  # seconds that count of a longer time between two looks: the process was stopped (Ctrl-Z)


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
    """The values chosen for config fields that said `auto`, and why, by field."""
    scheduled: Sequence[str] = ()
    """The parameters of the algorithm whose values depend on the planned budget."""


def run_training(
    config: TrainConfig, parts: TrainingParts, loop: Callable[[TrainingSession], None], options: RunOptions
) -> TrainResult:
    """Run `loop` inside a session, from the run directory's creation to the last callback."""
    with Watchdog(config, parts.collector.calls) as watchdog:
        session = _open_session(config, parts, options)
        watchdog.watch(session.evaluator.calls)
        watchdog.rescue = session.rescue
        return _run_session(session, loop, options)


def _run_session(session: TrainingSession, loop: Callable[[TrainingSession], None], options: RunOptions) -> TrainResult:
    try:
        with _stop_signals(session):
            session.note_decisions(options.decisions)
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
    if result.status == "interrupted" and session.signal_number is not None:
        message = f"interrupted at step {session.state.global_step}; saved {result.checkpoint_path}"
        raise TrainingInterrupted(message, session.signal_number)
    return result


def _open_session(config: TrainConfig, parts: TrainingParts, options: RunOptions) -> TrainingSession:
    """Everything that can go wrong in setting up does so before the directory is made."""
    saved = options.checkpoint_state
    if saved is None:
        parts.collector.start()
        run = create_training_run(config, options.run_suffix, output_dir=options.output_dir)
        return TrainingSession(config, parts, run, options.callbacks)
    with refusing_misfits(config):
        progress = SavedProgress.from_state(saved.trainer_state)
        parts.learner.load_state_dict(saved.algorithm_state)
        parts.buffer.load_state_dict(saved.buffer_state)
        samples = [ReplaySample.from_state(sample) for sample in progress.collector["samples"]]
        unrepeatable = check_replays(config, samples)  # before the envs of this process do anything
        given_up = parts.collector.restore(progress.collector)
        parent = {"run_id": saved.metadata["run_id"], "step": progress.global_step}
    failures = [f"env {index} began a new episode, because {why}" for index, why in given_up.items()]
    differences = find_differences(config, saved, options.scheduled)
    note = ResumeNote(progress.global_step, (*failures, *unrepeatable, *differences))
    if failures or unrepeatable:
        warnings.warn(str(note), stacklevel=2)
    if failures:
        parts.buffer.cut(list(given_up), progress.collector["obs"].numpy())
    if options.lock is not None:
        run = reopen_training_run(options.lock, config, note)
        run.segments.adopt(saved.buffer_state)
    else:
        run = create_training_run(config, options.run_suffix, output_dir=options.output_dir)
        update_metadata(run.run_context, parent=parent)
        note_resume(run.run_context, note)
        progress = progress.forked()
    session = TrainingSession(config, parts, run, options.callbacks, progress)
    session.state.resumed = note
    session.was_compiled = config.compile == "on" and saved.metadata.get("packages") is not None
    return session


class _StopRequest:
    """Handlers for stop signals: they ask the loop to stop and save, and end work that does not reach such a point."""

    def __init__(self, session: TrainingSession) -> None:
        self._session = session
        self._waited = self._looked_at = 0.0
        self._ended_wait = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Ask the loop to stop at the first signal; the next one stops the run at once."""
        del frame
        session = self._session
        if session.signal_number is not None:
            self._give_up("a second signal came")
        session.signal_number = reported_signal(number)
        session.state.request_stop(signal.Signals(number).name)
        self._looked_at = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)

    def look(self, number: int, frame: FrameType | None) -> None:
        """Interrupt a wait for another process, or work that still runs some seconds after the signal."""
        del number, frame
        if self._session.signal_number is None:  # somebody else's alarm
            return
        now = time.monotonic()
        self._waited += min(now - self._looked_at, _LONGEST_LOOK)
        self._looked_at = now
        if self._session.saving:
            self._waited = 0.0
            return
        if is_waiting_for_others() and not self._ended_wait:
            self._ended_wait = True  # once: the end of the other process is waited for in its turn
            self._give_up("the update was waiting for another process")
        if self._waited >= _PATIENCE_SECONDS:
            self._waited = 0.0
            self._give_up(f"the current work did not end within {_PATIENCE_SECONDS:g} s")

    def _give_up(self, reason: str) -> NoReturn:
        session = self._session
        saved = step_checkpoints(session.state.run_dir / "checkpoints")
        checkpoint = saved[0].name if saved else "the start"
        message = f"interrupted after step {session.state.global_step} without saving, because {reason}"
        raise TrainingInterrupted(f"{message}; resume continues from {checkpoint}", session.signal_number or 0)


@contextmanager
def _stop_signals(session: TrainingSession) -> Iterator[None]:
    """Let the first stop signal ask the loop to stop and save, and the next one stop it at once.

    A long update or a hanging env is given up after a while. The newest checkpoint is then the one to continue from.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    request = _StopRequest(session)
    before = signal.signal(signal.SIGALRM, request.look)
    try:
        with handling_stop_signals(request.receive):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
