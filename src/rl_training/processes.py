"""Kill processes that other processes have left behind."""

import os
import signal
import time
from contextlib import suppress

import psutil

_MARK = "RL_TRAINING_STARTED_BY"  # an environment variable


def kill_group(leader: int) -> None:
    """Kill the process group of the process `leader`, even if that process has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_tree(leader: int) -> None:
    """Kill a running process that leads a process group, its group, and its descendants in other groups."""
    kill_descendants(leader)
    kill_group(leader)


def kill_descendants(pid: int) -> None:
    """Kill all running descendants of a running process."""
    with suppress(psutil.Error):
        for descendant in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                descendant.kill()


def mark_children() -> None:
    """Mark all processes started from now on, so that they can be found even if their parent process has ended."""
    os.environ[_MARK] = f"{os.getpid()}-{time.time_ns()}"


def kill_children() -> None:
    """Kill every running process that this process has started, directly or indirectly."""
    kill_descendants(os.getpid())
    mark = os.environ.get(_MARK)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mark and process.environ().get(_MARK) == mark:
                process.kill()
