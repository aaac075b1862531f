"""`list`: list the runs below a directory."""

from pathlib import Path
from typing import Annotated

import typer


def list_runs(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to look for runs.")] = Path("runs"),
) -> int:
    """List the runs below a directory, with their returns and status.

    Examples:
        rl-training list
        rl-training list runs/GROUP
    """
    from rl_training.cli.console import show_runs

    show_runs(directory)
    return 0
