"""`list`: the runs below a directory."""

from pathlib import Path
from typing import Annotated

import typer


def list_runs(
    directory: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"),
) -> int:
    """List the runs below a directory."""
    from rl_training.cli.console import show_runs

    show_runs(directory)
    return 0
