"""The processor: its name, its instruction sets, and the number of cores that this process may use."""

import math
import os
import platform
import sys
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return the number of cores that this process may use, as limited by `taskset` or a container."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    return int(min(len(os.sched_getaffinity(0)), cgroup_cores(own_cgroup_folder())))


def cpu_name() -> str:
    """Return the name of the processor as Linux reports it, or else its architecture."""
    return _cpu_info("model name") or platform.machine()


def cpu_features() -> str:
    """Return the instruction sets of the processor as Linux lists them; empty on other systems."""
    return _cpu_info("flags", "Features")


def _cpu_info(*fields: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(fields)), "")


def own_cgroup_folder() -> Path:
    """Return the folder of this process's control group (version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    return _CGROUPS / next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")


def cgroup_cores(folder: Path) -> float:
    """Return the core limit of a control group (version 2) and of its parents; infinity if there is no limit."""
    quotas: list[float] = []
    for place in (folder, *folder.parents):
        try:
            quota, period = (place / "cpu.max").read_text().split()
            quotas.append(float(quota) / float(period))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return math.ceil(min(quotas)) if quotas else math.inf
