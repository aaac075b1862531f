"""`list`: list the runs and studies below a directory."""

from pathlib import Path
from typing import Annotated

import typer


def list_runs(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to look for runs.")] = Path("runs"),
) -> int:
    """List runs and studies below a directory, or trials of a study.

    Examples:
        rl-training list
        rl-training list runs/GROUP
        rl-training list runs/STUDY
    """
    from rl_training.cli.console import show_runs

    show_runs(directory)
    return 0
