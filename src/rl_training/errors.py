"""Everything this package raises on purpose. Each message says what was given, what is allowed, what to do."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s'\"]*@")


class RLTrainingError(Exception):
    """The root: `except RLTrainingError` catches whatever the user can put right."""

    ended_run = False
    """Whether a run was in progress, and has failed with this error."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a config: where, and what would be right."""

    path: tuple[str, ...]
    text: str


class ConfigError(RLTrainingError, ValueError):
    """A config that cannot be trained, with every problem found in it."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class EnvironmentSetupError(RLTrainingError):
    """An environment that cannot be made, or whose spaces are not supported."""


class UntrustedModuleError(RLTrainingError):
    """An environment that a file names, with a module in the working directory that the user has not trusted."""


class EnvironmentStepError(RLTrainingError, RuntimeError):
    """An environment that failed while it ran; the message names env, episode, seed, step and action."""


class NonFiniteUpdateError(RLTrainingError, ArithmeticError):
    """A gradient step whose loss or gradient is no finite number; the weights are those from before it."""

    def __init__(self, message: str, step: Any) -> None:
        super().__init__(message)
        self.step = step
        """What was not done, so that it can be looked at and repeated."""


class CheckpointError(RLTrainingError):
    """A checkpoint that is missing, damaged, unsafe or of another format."""


class RunDirectoryError(RLTrainingError):
    """A run directory that cannot be created, opened or written."""


class TrainingStateError(RLTrainingError):
    """A call that the state of a trainer or model does not allow, such as training it twice."""


class TrainingInterrupted(KeyboardInterrupt):
    """A signal ended the run after its state was saved. Uncaught, it ends the program as Ctrl-C does."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def describe_error(error: BaseException) -> str:
    """An error in one line, for messages and files."""
    return without_credentials(f"{type(error).__name__}: {' '.join(str(error).split())}")


def without_credentials(text: str) -> str:
    """The text without the user names, passwords and tokens that stand before the host of a URL."""
    return _CREDENTIALS.sub("", text)


def describe_exit(code: int) -> str:
    """How a process ended that gave no error, for messages; negative codes are signals."""
    return f"its process exited with code {code}" if code >= 0 else f"it was killed by {signal.Signals(-code).name}"
