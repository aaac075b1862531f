"""Bookkeeping of env calls in this process: which call is running, and which error to raise if it fails."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl_training.errors import EnvironmentStepError, ObservationError, RLTrainingError, describe_error
from rl_training.signals import SignalExit

STEP_PATIENCE = 1.0
RESET_PATIENCE = 12.0  # a reset, or an env's first step, may take this many times as long as a step
REPLAYED_STEP_PATIENCE = 0.01  # added to the patience of a restore for each replayed step
_ABANDONED_POLL_SECONDS = 0.05


class EnvInterrupt(BaseException):
    """Raised inside an env call to end it. Not an `Exception`, so that an env's own `except` does not catch it."""


# Everything that an env may raise. A KeyboardInterrupt comes from the user.
ENV_FAILURES = (Exception, SystemExit, EnvInterrupt)


class EnvCalls:
    """The env call that is running now. The caller writes the attributes, and a watchdog thread reads them."""

    def __init__(self) -> None:
        self.running: Callable[[int], str] | None = None
        """A function that describes the running call, given the env's index; a new object for every call."""
        self.index = 0
        """The index of the env that is being called."""
        self.patience = RESET_PATIENCE
        """The time limit of the running call as a multiple of the step timeout; higher until the first step is done."""
        self.abandoned = False
        """Whether the run is being saved without waiting for this call."""

    def begin(self, locate: Callable[[int], str]) -> None:
        """Begin a call."""
        self.running = locate

    def end(self) -> None:
        """End the call, whether it returned or raised."""
        self.running = None
        while self.abandoned:  # another thread is saving the run in its state before this call
            time.sleep(_ABANDONED_POLL_SECONDS)

    def place(self) -> str:
        """Describe the running call for messages."""
        return "an env" if self.running is None else self.running(self.index)

    def error(self, failure: BaseException) -> EnvironmentStepError:
        """Convert an env's exception into the error to raise; re-raise a signal that ends the program."""
        if isinstance(failure, SignalExit):
            raise failure
        return EnvironmentStepError(f"{self.place()}: {_failure_text(failure)}")

    @contextmanager
    def slow(self, locate: Callable[[int], str], index: int = 0, replayed_steps: int = 0) -> Iterator[None]:
        """Run a call with the patience for a reset and for replayed steps; if it fails, the error names its place."""
        before, self.patience = self.patience, RESET_PATIENCE + REPLAYED_STEP_PATIENCE * replayed_steps
        self.index = index
        self.begin(locate)
        try:
            yield
        except ObservationError as error:
            raise self.error(error) from error
        except RLTrainingError:  # its message is clear already
            raise
        except ENV_FAILURES as failure:
            raise self.error(failure) from failure
        finally:
            self.end()
            self.patience = before


def _failure_text(failure: BaseException) -> str:
    if isinstance(failure, SystemExit):
        return f"it called sys.exit({failure.code!r})"
    return str(failure) if isinstance(failure, (EnvInterrupt, ObservationError)) else describe_error(failure)
