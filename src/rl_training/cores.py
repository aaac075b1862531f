"""The processor: its name, its instructions, and the cores that a container or `taskset` leaves to this process."""

import math
import os
import platform
import sys
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Those of its affinity, and no more than its control group pays for."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    return int(min(len(os.sched_getaffinity(0)), cgroup_cores(own_cgroup_folder())))


def cpu_name() -> str:
    """The processor as Linux names it, or its architecture."""
    return _cpu_info("model name") or platform.machine()


def cpu_features() -> str:
    """The instructions that the processor knows, as Linux lists them; empty elsewhere."""
    return _cpu_info("flags", "Features")


def _cpu_info(*fields: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(fields)), "")


def own_cgroup_folder() -> Path:
    """The folder of this process's control group (version 2)."""
    return _CGROUPS / _own_cgroup()


def _own_cgroup() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")


def cgroup_cores(folder: Path) -> float:
    """Cores whose time a control group (version 2) and those above it leave their processes; infinite for no limit."""
    quotas: list[float] = []
    for place in (folder, *folder.parents):
        try:
            quota, period = (place / "cpu.max").read_text().split()
            quotas.append(float(quota) / float(period))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return math.ceil(min(quotas)) if quotas else math.inf
