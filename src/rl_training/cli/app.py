"""The command line: its commands, its exit codes, and what happens around every command.

The commands import inside their functions, so that `--help` answers at once.
"""

import atexit
import errno
import multiprocessing
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from rl_training import __version__
from rl_training.cli.benchmark import benchmark
from rl_training.cli.check_env import check_env
from rl_training.cli.compare import compare
from rl_training.cli.evaluate import evaluate
from rl_training.cli.list_runs import list_runs
from rl_training.cli.plot import plot
from rl_training.cli.record import record
from rl_training.cli.replay import replay
from rl_training.cli.report import report
from rl_training.cli.resume import resume
from rl_training.cli.running import FAILED, USER_ERROR
from rl_training.cli.train import train
from rl_training.errors import EnvironmentStepError, NonFiniteUpdateError, RLTrainingError
from rl_training.output import drop_lost_output, printable_warnings, show_line, warn_of_lost_output
from rl_training.processes import kill_children, mark_children
from rl_training.signals import exiting_on_signals

app = typer.Typer(
    name="rl-training",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train reinforcement-learning agents; evaluate, resume and list their runs."""
    del version


app.command()(train)
app.command("eval")(evaluate)
app.command()(resume)
app.command()(replay)
app.command("list")(list_runs)
app.command("check-env")(check_env)
app.command()(compare)
app.command()(plot)
app.command()(report)
app.command()(record)
app.command()(benchmark)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 for a failed run or env, 2 for a user's error, 128 + N for signal N."""
    command = typer.main.get_command(app)
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with printable_warnings():
            return int(command.main(args=args or ["--help"], prog_name="rl-training", standalone_mode=False) or 0)
    except (typer.TyperException, RLTrainingError) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if isinstance(error, EnvironmentStepError) and error.__cause__ is not None:
            cause = "".join(traceback.format_exception(error.__cause__))  # the env's author needs it
            show_line(cause.rstrip("\n"), error=True)
        show_line(f"error: {' '.join(message.split())}", error=True)
        return FAILED if _is_failure(error) else USER_ERROR
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        show_line(f"error: {str(error.filename)[:60]}...: the name of a file or directory is too long", error=True)
        return USER_ERROR


def _is_failure(error: Exception) -> bool:
    """Return whether a run or an env failed, as opposed to a mistake of the user."""
    in_run = isinstance(error, RLTrainingError) and error.ended_run
    return in_run or isinstance(error, (EnvironmentStepError, NonFiniteUpdateError))


def entry_point() -> None:
    """The console script."""
    drop_lost_output()
    mark_children()
    atexit.register(_kill_children)  # registered first, called last
    try:
        with exiting_on_signals():
            code = main()
    finally:
        warn_of_lost_output()
        for process in multiprocessing.active_children():  # of an env: Python would wait for them, maybe for ever
            process.kill()
    sys.exit(code)


def _kill_children() -> None:
    """Kill programs that envs left running: they would keep open the pipes that they inherited from this command."""
    if "rl_training.envs.vector.pool" in sys.modules:  # no env was made without it
        kill_children()
