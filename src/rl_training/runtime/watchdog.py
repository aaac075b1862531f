"""A watchdog for env calls in this process: it ends calls that hang or that try to exit, and saves the run.

It cannot act when C code hangs while it holds Python's global lock, when C code exits the process, or when an env
imported `_exit` by name. Only worker processes (`vectorization: async`) protect a run from those.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import NoReturn

from typing_extensions import Self

from rl_training.envs.guard import EnvCalls, EnvInterrupt
from rl_training.errors import EnvironmentStepError
from rl_training.experiment.config import TrainConfig
from rl_training.processes import kill_descendants

_STEP_TIMEOUT = 60.0  # seconds; longer than for worker processes, since a hang in this process ends the run
_TICK_SECONDS = 0.25
_SHORTEST_TICK = 0.01
_GRACE_SECONDS = 3.0  # for the thread to react to an interrupt
_SAVING_SECONDS = 60.0
_INTERRUPT = signal.SIGURG  # ignored by default, so that a late one does no harm
_DEBUGGERS = ("bdb", "pdb", "pydevd")
_FAILURE_EXIT_CODE = 1


def _save_nothing(error: EnvironmentStepError) -> None:
    """Do nothing, because there is no run to save."""
    del error


@dataclass(frozen=True)
class _Call:
    """An env call that the watchdog saw running."""

    calls: EnvCalls
    locate: Callable[[int], str]
    index: int

    def is_running(self) -> bool:
        """Return whether this call is still running."""
        return self.calls.running is self.locate and self.calls.index == self.index


class Watchdog:
    """Watches env calls of the thread that enters it, from a thread of its own.

    A call that takes too long is interrupted by a signal, whose handler raises `EnvInterrupt` inside the env. If the
    call still continues, or if it does not run in the main thread, `rescue` saves the run and the process ends.
    Time is counted in ticks, so that a process that was stopped for an hour has waited one tick.
    """

    def __init__(self, config: TrainConfig, watched: Iterable[EnvCalls]) -> None:
        self.rescue: Callable[[EnvironmentStepError], None] = _save_nothing
        """A function that saves the run from the watchdog's thread; the caller sets it once there is a run."""
        self._watched = list(watched)
        self._limit = config.step_timeout or _STEP_TIMEOUT
        self._tick = min(_TICK_SECONDS, max(self._limit / 4.0, _SHORTEST_TICK))
        self._thread_id = threading.get_ident()
        self._process_id = os.getpid()
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        self._overdue: _Call | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="env-watchdog", daemon=True)
        self._exit = os._exit
        self._handler = signal.getsignal(_INTERRUPT)

    def watch(self, calls: EnvCalls) -> None:
        """Watch these calls too."""
        self._watched.append(calls)

    def __enter__(self) -> Self:
        if self._in_main_thread:  # handlers can be set, and run, only there
            self._handler = signal.signal(_INTERRUPT, self._interrupt)
        self._exit, os._exit = os._exit, self._refuse_exit
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        os._exit = self._exit
        if self._in_main_thread:
            signal.signal(_INTERRUPT, self._handler)

    def _refuse_exit(self, status: int) -> NoReturn:
        """Replace `os._exit`: an env call may not end this process, but forked children and other code may."""
        ours = (os.getpid(), threading.get_ident()) == (self._process_id, self._thread_id)
        if ours and self._running_call() is not None:
            raise EnvInterrupt(f"it called os._exit({status})")
        self._exit(status)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the watchdog's signal in the main thread, unless the call has ended in the meantime."""
        del number, frame
        if self._overdue is not None and self._overdue.is_running():
            raise EnvInterrupt(self._hang_text(self._overdue.calls))

    def _hang_text(self, calls: EnvCalls) -> str:
        seconds = calls.patience * self._limit
        return f"no answer within {seconds:g} s; raise step_timeout={self._limit:g} if it needs more time"

    def _run(self) -> None:
        waited, grace = 0, self._ticks(_GRACE_SECONDS)
        current: _Call | None = None
        while not self._closed.wait(self._tick):
            if current is None or not current.is_running():
                waited, current = 0, self._running_call()
                continue
            waited += 1
            allowed = self._ticks(current.calls.patience * self._limit)
            if waited == allowed:
                if self._in_debugger():
                    waited = 0
                elif self._in_main_thread:
                    self._overdue = current
                    signal.pthread_kill(self._thread_id, _INTERRUPT)
                else:
                    waited += grace
            if waited >= allowed + grace:
                self._save_and_exit(current)

    def _ticks(self, seconds: float) -> int:
        return max(round(seconds / self._tick), 1)

    def _running_call(self) -> _Call | None:
        for calls in self._watched:
            locate = calls.running
            if locate is not None:
                return _Call(calls, locate, calls.index)
        return None

    def _in_debugger(self) -> bool:
        """Return whether the thread is in a debugger, where a call may take any time."""
        frame = sys._current_frames().get(self._thread_id)
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS:
                return True
            frame = frame.f_back
        return False

    def _save_and_exit(self, call: _Call) -> None:
        """Save the run in its state before the call, and end the process, because the call cannot be interrupted."""
        call.calls.abandoned = True
        if not call.is_running():
            call.calls.abandoned = False
            return
        error = EnvironmentStepError(f"{call.locate(call.index)}: {self._hang_text(call.calls)}")
        saving = threading.Thread(target=self.rescue, args=(error,), daemon=True)
        saving.start()
        saving.join(_SAVING_SECONDS)
        traceback.print_stack(sys._current_frames().get(self._thread_id))  # for the author of the env
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        kill_descendants(self._process_id)  # no exit handler runs, so end what the env has started
        self._exit(_FAILURE_EXIT_CODE)
