"""Train, show the result, and turn an interruption into an exit code."""

from typing import TYPE_CHECKING

from rl_training.errors import TrainingInterrupted
from rl_training.output import show_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rl_training.runtime.trainer import TrainResult

FAILED = 1
USER_ERROR = 2


def run_to_end(train: "Callable[[], TrainResult]") -> int:
    """Train, show the result, and return the exit code."""
    from rl_training.cli.console import show_result

    try:
        show_result(train())
    except TrainingInterrupted as error:
        return show_interruption(error)
    return 0


def show_interruption(error: TrainingInterrupted) -> int:
    """Say what was saved; returns the exit code, since typer would answer every KeyboardInterrupt with 130."""
    show_line(error, error=True)
    return 128 + error.signal_number
