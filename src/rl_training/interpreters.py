"""Python processes that do not look for modules in the working directory first, as Python lets them by default."""

import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path


def start_fork_server(start_method: str) -> None:
    """Start the process that `forkserver` forks from, unless it runs, outside of the working directory.

    It begins with `python -c`, so it imports a `socket.py` of the directory where it starts. The processes that it
    forks get the working directory and the `sys.path` of the process that asks for them.
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
    places = [str(Path(place).absolute()) for place in sys.path if place]
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {places!r}; {code}", *arguments]
