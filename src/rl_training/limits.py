"""Checks that a run stays within the system's limits for processes and open files."""

import os
import resource
from pathlib import Path

import psutil

from rl_training.cores import own_cgroup_folder
from rl_training.errors import ConfigError

_SPARE_FILES = 16  # for the files of a run, of its trackers and of libraries
_PID_LIMITS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")


def check_open_files(num_files: int, purpose: str, remedy: str) -> None:
    """Raise `ConfigError` if this process may not open `num_files` more files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = psutil.Process().num_fds()
    needed = in_use + num_files + _SPARE_FILES
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise ConfigError(
            f"{purpose} need about {needed:,} open files, but the limit is {limit:,} (ulimit -n): "
            f"raise it with 'ulimit -n {needed}', or {remedy}"
        )


def check_processes(num_processes: int, num_threads: int, purpose: str, remedy: str) -> None:
    """Raise `ConfigError` if this user or container may not start `num_processes` with `num_threads` each."""
    needed = num_processes * num_threads
    allowed = {"ulimit -u": _user_limit(), "kernel.pid_max and kernel.threads-max": _kernel_limit()}
    allowed["pids.max of the control group"] = _cgroup_limit()
    for name, limit in allowed.items():
        if limit is not None and needed > limit:
            raise ConfigError(
                f"{purpose} have {needed:,} threads, but the limit is {limit:,} ({name}): raise the limit, or {remedy}"
            )


def _user_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if limit == resource.RLIM_INFINITY or os.geteuid() == 0 else limit  # the limit does not apply to root


def _kernel_limit() -> int | None:
    limits = [limit for limit in map(_read_number, map(Path, _PID_LIMITS)) if limit is not None]
    return min(limits, default=None)


def _cgroup_limit() -> int | None:
    folder = own_cgroup_folder()
    limits = [_read_number(place / "pids.max") for place in (folder, *folder.parents)]
    return min((limit for limit in limits if limit is not None), default=None)


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
