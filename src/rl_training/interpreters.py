"""Start Python processes that do not import modules from the working directory first, as Python does by default."""

import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path


def start_fork_server(start_method: str) -> None:
    """Start the fork server outside of the working directory, unless it is already running.

    The fork server is started with `python -c`, so it would import a file `socket.py` from the directory in which it
    starts. The processes that it forks get the working directory and the `sys.path` of the process that requests them.
    """
    if start_method != "forkserver":
        return
    here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        forkserver.ensure_running()
    finally:
        os.fchdir(here)
        os.close(here)


def isolated_command(code: str, arguments: Sequence[str]) -> list[str]:
    """Build a command that runs `code` in a Python that finds modules exactly where this one does."""
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {module_places()!r}; {code}", *arguments]


def module_places() -> list[str]:
    """Return the directories in which this process finds modules."""
    return [str(Path(place).absolute()) for place in sys.path if place]
