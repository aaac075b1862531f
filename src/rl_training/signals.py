"""The signals that ask a program to stop: how they are handled, and which work they may interrupt immediately."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

_RESEND_SECONDS = 0.05  # by then, Python has left the code in which it ignores exceptions

Handler = Callable[[int, FrameType | None], None]


class SignalExit(SystemExit):
    """An exit caused by a signal; unlike an env's own `sys.exit`, it is never caught."""


_waiting: ContextVar[bool] = ContextVar("waiting", default=False)


def handled_stop_signals() -> list[signal.Signals]:
    """Return the stop signals that this process handles: all of them, except a SIGHUP that `nohup` ignores."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (ignores_hangup and number == signal.SIGHUP)]


def reported_signal(number: int) -> int:
    """Return the signal for the exit code: SIGTERM for SIGUSR1, with which schedulers announce a SIGTERM."""
    return signal.SIGTERM if number == signal.SIGUSR1 else number


@contextmanager
def handling_stop_signals(handler: Handler) -> Iterator[None]:
    """Handle stop signals with `handler` inside the block; do nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in handled_stop_signals()}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Exit with code 128 + N on stop signal N, without a traceback and without saving anything.

    Where Python ignores exceptions, as in its own functions around a fork, the signal is sent again a moment later.
    """
    received: int | None = None
    report = sys.unraisablehook

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal received
        del frame
        if received is None:
            received = number
            with suppress(OSError):  # print() cannot be used: the signal may have interrupted another print()
                os.write(2, f"interrupted by {signal.Signals(number).name}\n".encode())
        raise SignalExit(128 + reported_signal(number))

    def send_again(ignored: "sys.UnraisableHookArgs") -> None:
        if not isinstance(ignored.exc_value, SignalExit):
            report(ignored)
            return
        timer = threading.Timer(_RESEND_SECONDS, os.kill, (os.getpid(), received))
        timer.daemon = True
        timer.start()

    with handling_stop_signals(leave):
        sys.unraisablehook = send_again
        try:
            yield
        finally:
            sys.unraisablehook = report


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """Mark a block that waits for another process, such as a compiler; a signal may end it with an exception."""
    token = _waiting.set(True)
    try:
        yield
    finally:
        _waiting.reset(token)


def is_waiting_for_others() -> bool:
    """Return whether the code that a signal handler has interrupted is inside `waiting_for_others`."""
    return _waiting.get()
