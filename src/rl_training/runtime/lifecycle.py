"""A run from its directory's creation to its last callback, however it ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rl_training.errors import TrainingInterrupted
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import update_metadata
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.run_utils import create_training_run, refusing_misfits, reopen_training_run
from rl_training.runtime.session import SavedProgress, TrainingParts, TrainingSession
from rl_training.runtime.trainer import TrainResult


@dataclass(frozen=True)
class RunOptions:
    """Where a run lives, what it starts from, and who is told."""

    run_suffix: str | None
    checkpoint_state: CheckpointState | None
    callbacks: CallbackList
    run_dir: Path | None
    """Continue in this directory instead of creating one; needs `checkpoint_state`."""


def run_training(
    config: TrainConfig, parts: TrainingParts, loop: Callable[[TrainingSession], None], options: RunOptions
) -> TrainResult:
    """Run `loop` inside a session, from the run directory's creation to the last callback."""
    session = _open_session(config, parts, options)
    try:
        with _stop_signals(session):
            options.callbacks.on_train_start(session.state)
            loop(session)
            result = session.finish()
    except BaseException as error:
        session.fail(error)
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
    progress = None
    if saved is not None:
        with refusing_misfits(config):
            parts.learner.load_state_dict(saved.algorithm_state)
            parts.buffer.load_state_dict(saved.buffer_state)
            parts.envs.tracker.load_state_dict(saved.trainer_state["envs"])
            progress = SavedProgress.from_state(saved.trainer_state)
            parent = {"run_id": saved.metadata["run_id"], "step": progress.global_step}
    first_obs, _ = parts.envs.reset()
    if options.run_dir is not None and saved is not None and progress is not None:
        run = reopen_training_run(options.run_dir, config, progress.global_step)
        run.segments.adopt(saved.buffer_state)
        return TrainingSession(config, parts, run, options.callbacks, first_obs, progress)
    run = create_training_run(config, options.run_suffix)
    if progress is not None:
        update_metadata(run.run_context, parent=parent)
        progress = progress.forked()
    return TrainingSession(config, parts, run, options.callbacks, first_obs, progress)


@contextmanager
def _stop_signals(session: TrainingSession) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the loop to stop and save, the next one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if session.signal_number is not None:
            raise KeyboardInterrupt
        session.signal_number = number
        session.state.request_stop(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
