"""Processes that other processes leave behind, and how they are ended."""

import os
import signal
import time
from contextlib import suppress

import psutil

_MARK = "RL_TRAINING_STARTED_BY"  # an environment variable


def kill_group(leader: int) -> None:
    """Kill a process group that was made for the process `leader`; the group may outlive that process."""
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
    """Mark all processes started from now on, so that they are found even if the one that started them is gone."""
    os.environ[_MARK] = f"{os.getpid()}-{time.time_ns()}"


def kill_children() -> None:
    """Kill every process that was started from this one, directly or not, and still runs."""
    kill_descendants(os.getpid())
    mark = os.environ.get(_MARK)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mark and process.environ().get(_MARK) == mark:
                process.kill()
