"""The exceptions of this package. Each message says what was given, what is allowed and what to do."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s'\"]*@")


class RLTrainingError(Exception):
    """The base class of all errors that a user can correct."""

    ended_run = False
    """Whether this error ended a run that was in progress."""


@dataclass(frozen=True)
class Problem:
    """One problem in a config: the path of the value, and a description."""

    path: tuple[str, ...]
    text: str


class ConfigError(RLTrainingError, ValueError):
    """An invalid config, with all problems that were found."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class EnvironmentSetupError(RLTrainingError):
    """An environment that cannot be created, or whose spaces are not supported."""


class UntrustedModuleError(RLTrainingError):
    """A module in the working directory that a config or checkpoint names and that the user has not trusted."""


class EnvironmentStepError(RLTrainingError, RuntimeError):
    """A failure of an environment during a run; the message names the env, episode, seed, step and action."""


class ClusterError(RLTrainingError, RuntimeError):
    """A cluster that a run has lost, or that has no room for its collectors any more."""


class ObservationError(RLTrainingError, ValueError):
    """An observation or action mask that an environment should not give."""


class ActionMaskError(ObservationError):
    """A mask of legal actions that is missing, has the wrong size or allows no action."""


class NonFiniteUpdateError(RLTrainingError, ArithmeticError):
    """A gradient step whose loss or gradient is not finite; the weights stay as they were before the step."""

    def __init__(self, message: str, step: Any) -> None:
        super().__init__(message)
        self.step = step
        """The rejected step, which can be inspected and repeated."""


class CheckpointError(RLTrainingError):
    """A checkpoint that is missing, damaged or unsafe, or that has another format."""


class ExportError(RLTrainingError):
    """An agent that cannot be exported in the requested format, or an export that acts differently."""


class RunDirectoryError(RLTrainingError):
    """A run directory that cannot be created, opened or written."""


class TrainingStateError(RLTrainingError):
    """A call that is not allowed in the current state of a trainer or model, such as training it twice."""


class TrainingInterrupted(KeyboardInterrupt):
    """An interruption by a signal; the message says what was saved. If it is not caught, it ends the program."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error in one line, without credentials."""
    return without_credentials(f"{type(error).__name__}: {' '.join(str(error).split())}")


def without_credentials(text: str) -> str:
    """Remove user names, passwords and tokens from the URLs in a text."""
    return _CREDENTIALS.sub("", text)


def describe_exit(code: int) -> str:
    """Describe the exit code of a process for a message; negative codes are signals."""
    return f"its process exited with code {code}" if code >= 0 else f"it was killed by {signal.Signals(-code).name}"
