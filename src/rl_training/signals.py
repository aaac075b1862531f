"""The signals that ask a program to stop: which they are, who handles them, and what work they may end at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], None]


class SignalExit(SystemExit):
    """The end of a program that a signal asked for; unlike an env's own `sys.exit`, nothing may stop it."""


_waiting: ContextVar[bool] = ContextVar("waiting", default=False)


def heeded_signals() -> list[signal.Signals]:
    """List the stop signals that this process reacts to: all of them, but not a SIGHUP that `nohup` ignores."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (ignores_hangup and number == signal.SIGHUP)]


def reported_signal(number: int) -> int:
    """Return the signal that the exit code names: SIGUSR1 is how schedulers announce a SIGTERM."""
    return signal.SIGTERM if number == signal.SIGUSR1 else number


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Handle the stop signals by `handler`; outside the main thread, which alone may do that, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in heeded_signals()}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """End the program with exit code 128 + N on stop signal N, without a traceback, where nothing has to be saved."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        with suppress(OSError):  # print() may be what the signal has interrupted, and cannot be entered twice
            os.write(2, f"interrupted by {signal.Signals(number).name}\n".encode())
        raise SignalExit(128 + reported_signal(number))

    with handled(leave):
        yield


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """Mark a wait, such as that for a compiler, which a signal may end by an exception at any point."""
    token = _waiting.set(True)
    try:
        yield
    finally:
        _waiting.reset(token)


def is_waiting_for_others() -> bool:
    """Say whether the code that a signal handler has interrupted is inside `waiting_for_others`."""
    return _waiting.get()
