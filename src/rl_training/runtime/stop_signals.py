"""Stop signals of a run: the first one asks the loop to stop and save, the next one stops it at once."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rl_training.errors import TrainingInterrupted
from rl_training.experiment.checkpointing import step_checkpoints
from rl_training.runtime.session import TrainingSession
from rl_training.signals import handling_stop_signals, is_waiting_for_others, reported_signal

_MAX_WORK_SECONDS = 4.0  # SIGKILL usually follows SIGTERM after some seconds
_CHECK_SECONDS = 0.25  # between two checks while a signal waits for the loop
_MAX_COUNTED_SECONDS = 2.0  # a longer gap between two checks counts as this long: the process was stopped (Ctrl-Z)


class _StopRequest:
    """Handlers for stop signals: they ask the loop to stop and save, and interrupt work that takes too long."""

    def __init__(self, session: TrainingSession) -> None:
        self._session = session
        self._waited = self._checked_at = 0.0
        self._ended_wait = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Ask the loop to stop at the first signal; the next one stops the run at once."""
        del frame
        session = self._session
        if session.signal_number is not None:
            self._interrupt("a second signal came")
        session.signal_number = reported_signal(number)
        session.state.request_stop(signal.Signals(number).name)
        self._checked_at = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, _CHECK_SECONDS, _CHECK_SECONDS)

    def check(self, number: int, frame: FrameType | None) -> None:
        """Interrupt a wait for another process, or work that still runs some seconds after the signal."""
        del number, frame
        if self._session.signal_number is None:  # an alarm of other code
            return
        now = time.monotonic()
        self._waited += min(now - self._checked_at, _MAX_COUNTED_SECONDS)
        self._checked_at = now
        if self._session.saving:
            self._waited = 0.0
            return
        if is_waiting_for_others() and not self._ended_wait:
            self._ended_wait = True  # only once: the cleanup waits for the other process too
            self._interrupt("the update was waiting for another process")
        if self._waited >= _MAX_WORK_SECONDS:
            self._waited = 0.0
            self._interrupt(f"the current work did not end within {_MAX_WORK_SECONDS:g} s")

    def _interrupt(self, reason: str) -> NoReturn:
        session = self._session
        saved = step_checkpoints(session.state.run_dir / "checkpoints")
        checkpoint = saved[0].name if saved else "the start"
        message = f"interrupted after step {session.state.global_step} without saving, because {reason}"
        raise TrainingInterrupted(f"{message}; resume continues from {checkpoint}", session.signal_number or 0)


@contextmanager
def stop_signals(session: TrainingSession) -> Iterator[None]:
    """Let the first stop signal ask the loop to stop and save, and the next one stop it at once.

    A long update or a hanging env is given up after a while. The newest checkpoint is then the one to continue from.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    request = _StopRequest(session)
    before = signal.signal(signal.SIGALRM, request.check)
    try:
        with handling_stop_signals(request.receive):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
