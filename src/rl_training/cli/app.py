"""The program `rl-training`: its commands, its exit codes, and how it starts and ends.

The commands import inside their functions, so that `--help` and shell completion answer at once.
"""

import atexit
import errno
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from rl_training import __version__
from rl_training.cli.benchmark import benchmark
from rl_training.cli.check_env import check_env
from rl_training.cli.command import FAILED, USER_ERROR, CommandGroup, HelpfulCommand
from rl_training.cli.compare import compare
from rl_training.cli.evaluate import evaluate
from rl_training.cli.export import export
from rl_training.cli.list_runs import list_runs
from rl_training.cli.plot import plot
from rl_training.cli.record import record
from rl_training.cli.replay import replay
from rl_training.cli.report import report
from rl_training.cli.resume import resume
from rl_training.cli.train import train
from rl_training.cli.tune import tune
from rl_training.errors import (
    ClusterError,
    EnvironmentStepError,
    NonFiniteUpdateError,
    RLTrainingError,
    TrainingInterrupted,
)
from rl_training.output import drop_lost_output, printable_warnings, show_line, warn_of_lost_output
from rl_training.processes import kill_children, mark_children
from rl_training.signals import exiting_on_signals
from rl_training.waits import shown_waits

_COMMANDS: dict[str, dict[str, Callable[..., int]]] = {
    "Train": {"train": train, "resume": resume, "tune": tune},
    "Look at results": {
        "list": list_runs,
        "eval": evaluate,
        "record": record,
        "plot": plot,
        "compare": compare,
        "report": report,
    },
    "Deploy": {"export": export},
    "Check": {"check-env": check_env, "replay": replay, "benchmark": benchmark},
}


class Command(HelpfulCommand):
    """A command that may be interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupted run prints what was saved, and gives the exit code of its signal."""
        try:
            return super().invoke(ctx)
        except TrainingInterrupted as error:  # typer would answer with exit code 130, whatever the signal
            show_line(error, error=True)
            return 128 + error.signal_number


app = typer.Typer(name="rl-training", cls=CommandGroup, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train reinforcement-learning agents, and look at what they have learned.

    Every command explains its options: rl-training COMMAND --help.

    Examples:
        rl-training train --algo ppo --env CartPole-v1
        rl-training list
        rl-training eval runs/RUN_ID
    """
    del version


for _heading, _commands in _COMMANDS.items():
    for _name, _function in _commands.items():
        app.command(_name, cls=Command, rich_help_panel=_heading)(_function)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0 for success, 1 for a failed run or environment, 2 for a mistake of the user and 128 + N for signal N.
    """
    command = typer.main.get_command(app)
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with printable_warnings(), shown_waits():
            return int(command.main(args=args or ["--help"], prog_name="rl-training", standalone_mode=False) or 0)
    except (typer.TyperException, RLTrainingError) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if isinstance(error, EnvironmentStepError) and error.__cause__ is not None:
            cause = "".join(traceback.format_exception(error.__cause__))  # for the author of the env
            show_line(cause.rstrip("\n"), error=True)
        show_line(f"error: {' '.join(message.split())}", error=True)
        return FAILED if _is_failure(error) else USER_ERROR
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        show_line(f"error: {str(error.filename)[:60]}...: this file or directory name is too long", error=True)
        return USER_ERROR


def _is_failure(error: Exception) -> bool:
    """Return whether a run or an env failed, as opposed to the user making a mistake."""
    in_run = isinstance(error, RLTrainingError) and error.ended_run
    return in_run or isinstance(error, (ClusterError, EnvironmentStepError, NonFiniteUpdateError))


def entry_point() -> None:
    """Run the command line as a program: the console script `rl-training`."""
    drop_lost_output()
    mark_children()
    atexit.register(_kill_children)  # registered first, called last
    try:
        with exiting_on_signals():
            code = main()
    finally:
        warn_of_lost_output()
        for process in multiprocessing.active_children():  # an env left them, and Python would wait for them to end
            process.kill()
    sys.exit(code)


def _kill_children() -> None:
    """Kill programs that envs left running: they would keep open the pipes that they inherited from this command."""
    if "rl_training.envs.vector.pool" in sys.modules:  # otherwise, no env was made
        kill_children()
