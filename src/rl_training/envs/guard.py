"""Calls into envs that run in this process: which call is running, and what to raise when it fails."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl_training.errors import EnvironmentStepError, RLTrainingError, describe_error
from rl_training.signals import SignalExit

STEP_PATIENCE = 1.0
RESET_PATIENCE = 12.0  # how many times as long as a step a reset, or an env's first step, may take
REPLAYED_STEP = 0.01  # what each replayed step adds to the patience with a restore
_PARKED_SECONDS = 0.05


class EnvInterrupt(BaseException):
    """Raised inside an env call to end it. It is no `Exception`, so that an env's own `except` does not swallow it."""


# What an env may raise: everything but a KeyboardInterrupt, which belongs to the user.
ENV_FAILURES = (Exception, SystemExit, EnvInterrupt)


class EnvCalls:
    """The call that runs in an env now, as plain attributes: the caller writes them, a watchdog thread reads them."""

    def __init__(self) -> None:
        self.running: Callable[[int], str] | None = None
        """Describes the running call for messages, given the env's index; an object of its own for every call."""
        self.index = 0
        """Which env of the vector is being called."""
        self.patience = RESET_PATIENCE
        """How many times as long as an ordinary step a call may take now: longer until the first step is done."""
        self.abandoned = False
        """Whether the run is being saved without waiting for this call."""

    def begin(self, locate: Callable[[int], str]) -> None:
        """Begin a call."""
        self.running = locate

    def end(self) -> None:
        """End the call, whether it returned or raised."""
        self.running = None
        while self.abandoned:  # another thread is saving the run as it was before this call
            time.sleep(_PARKED_SECONDS)

    def place(self) -> str:
        """Describe the running call for messages."""
        return "an env" if self.running is None else self.running(self.index)

    def error(self, failure: BaseException) -> EnvironmentStepError:
        """Return the error to raise for what an env raised; a signal that ends the program is passed on."""
        if isinstance(failure, SignalExit):
            raise failure
        return EnvironmentStepError(f"{self.place()}: {_failure_text(failure)}")

    @contextmanager
    def slow(self, locate: Callable[[int], str], index: int = 0, replayed_steps: int = 0) -> Iterator[None]:
        """Run a call that may take as long as a reset, and as the steps that it replays; name its place if it fails."""
        before, self.patience = self.patience, RESET_PATIENCE + REPLAYED_STEP * replayed_steps
        self.index = index
        self.begin(locate)
        try:
            yield
        except RLTrainingError:  # says already what is wrong
            raise
        except ENV_FAILURES as failure:
            raise self.error(failure) from failure
        finally:
            self.end()
            self.patience = before


def _failure_text(failure: BaseException) -> str:
    if isinstance(failure, SystemExit):
        return f"it called sys.exit({failure.code!r})"
    return str(failure) if isinstance(failure, EnvInterrupt) else describe_error(failure)
