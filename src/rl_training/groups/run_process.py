"""The process of one run of a group: trains it like any other run, and reports to the main process of the group."""

import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from rl_training.errors import TrainingInterrupted, describe_error
from rl_training.experiment.checkpointing import step_checkpoints
from rl_training.experiment.files import open_regular, set_aside
from rl_training.experiment.groups import run_budget
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import RunContext, context_of
from rl_training.experiment.sources import Layer
from rl_training.groups.jobs import Outcome, ProgressUpdate, RunJob
from rl_training.output import drop_lost_output
from rl_training.processes import kill_descendants, kill_tree
from rl_training.results.drawing import plot_run
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.types import MetricDict
from rl_training.runtime.workflows import prepare_resume
from rl_training.signals import STOP_SIGNALS, handled_stop_signals
from rl_training.waits import shown_waits

_UPDATE_SECONDS = 0.25
_ORPHAN_SECONDS = 60.0  # for a run to end by itself after its main process has gone; then again after a signal


class ProgressReporter(Callback):
    """A callback that sends progress to the main process; if that process is gone, the run saves its state and ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent_at = 0.0

    def on_train_start(self, trainer: TrainerState) -> None:
        """Prepare the signal handlers, and send the first update."""
        _ignore_repeated_signals()
        self._send(trainer)

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Send an update, unless the last one is recent."""
        del result
        if time.monotonic() - self._sent_at >= _UPDATE_SECONDS:
            self._send(trainer)

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Send an update immediately."""
        del metrics
        self._send(trainer)

    def _send(self, trainer: TrainerState) -> None:
        self._sent_at = time.monotonic()
        _, writable, _ = select.select([], [self._connection], [], 0.0)
        if not writable:  # a suspended main process must not block the run
            return
        try:
            self._connection.send(ProgressUpdate(trainer.global_step, dict(trainer.metrics)))
        except OSError:
            signal.raise_signal(signal.SIGTERM)


def _ignore_repeated_signals() -> None:
    """Handle only the first stop signal; for a single run, the second one would end it without saving.

    A scheduler signals every process of a job, and the main process passes its own signal on, so a second signal does
    not mean that the user is impatient. A user's second Ctrl-C reaches the main process, which then kills the runs.
    """
    received: list[int] = []
    handler = signal.getsignal(signal.SIGTERM)

    def handle_first(number: int, frame: FrameType | None) -> None:
        if not received and callable(handler):
            received.append(number)
            handler(number, frame)

    for number in handled_stop_signals():
        signal.signal(number, handle_first)


def train_job(job: RunJob, connection: Connection) -> None:
    """Train or resume one run: the main function of its process."""
    os.setpgid(0, 0)  # a terminal signals its foreground group; only the main process may receive that signal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # Ray starts programs with SIGINT blocked
    threading.Thread(target=_end_with_owner, args=(connection,), daemon=True).start()
    multiprocessing.set_start_method(job.start_method, force=True)
    drop_lost_output()
    _redirect_output(job.log_path)
    try:
        reporting = [job.make_callback()] if job.make_callback else []
        with shown_waits():
            outcome = _train(job, [*reporting, ProgressReporter(connection), *job.stop.callbacks()])
        with suppress(OSError):
            connection.send(outcome)
        if outcome.status in ("completed", "stopped"):
            plot_run(context_of(job.run_dir))
    finally:
        kill_descendants(os.getpid())  # programs that an env has started and not ended


def _end_with_owner(connection: Connection) -> None:
    """Wait until the main process is gone; if the run hangs and does not notice it, stop it, and then kill it."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()  # nothing is ever sent
    time.sleep(_ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_SECONDS)
    kill_tree(os.getpid())


def _redirect_output(path: Path) -> None:
    """Append stdout and stderr, including output of C libraries, to a file; if it cannot be opened, change nothing."""
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        warnings.warn(f"{path} cannot be written: {error.strerror}", stacklevel=2)
        return
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(descriptor, number)
    os.close(descriptor)


def _train(job: RunJob, callbacks: Sequence[Callback]) -> Outcome:
    try:
        RunLock(job.run_dir).wait_free(job.lock_seconds)
        context = context_of(job.run_dir)
        if not step_checkpoints(context.checkpoints_dir):
            _set_aside(context)
            train = get_algorithm_spec(job.config.algo).train_fn
            return Outcome(train(job.config, run_suffix=job.run_suffix, callbacks=callbacks).status)
        # Refuse a checkpoint that names another environment or wrapper: only the modules of the group may be imported.
        changes: dict[str, Any] = {"env_id": job.config.env_id, "wrappers": job.config.wrappers}
        if run_budget(job.run_dir) < job.config.total_timesteps:
            changes["total_timesteps"] = job.config.total_timesteps
        return Outcome(prepare_resume(job.run_dir, [Layer("group", changes)]).train(callbacks=callbacks).status)
    except TrainingInterrupted as error:
        print(error, file=sys.stderr)
        return Outcome("interrupted", signal.Signals(error.signal_number).name)
    except KeyboardInterrupt:  # before the run installed its signal handlers
        return Outcome("interrupted", signal.SIGINT.name)
    except Exception as error:
        traceback.print_exc()
        return Outcome("failed", describe_error(error))


def _set_aside(context: RunContext) -> None:
    """Rename the directory of an earlier run that left no checkpoint, so that a new run can use its name."""
    if context.run_dir.exists():
        RunLock(context.run_dir).acquire().release()  # raises an error if another process is about to train there
        aside = set_aside(context.run_dir, "set-aside")
        reason = f"{context.run_dir} has no checkpoint to resume from"
        warnings.warn(f"{reason}: it was renamed to {aside.name}, and the run starts from the beginning", stacklevel=2)
