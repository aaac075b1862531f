"""Jobs, which describe the runs of a group, and the events of these runs.

Nothing here imports torch, which takes time and memory. Processes that only watch over runs, such as the actors of a
Ray cluster, need no more than this module.
"""

import multiprocessing
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.groups import SeedStatus
from rl_training.runtime.types import MetricDict

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback, StopRules

Jobs = int | Literal["auto"]

LOCK_SECONDS = 180.0
"""The time within which a run saves and ends, or is killed, after its owner has gone or cannot be reached."""
_NAME_PREFIX = "run-"


@dataclass(frozen=True)
class RunJob:
    """The run that a process trains, or resumes if it has a checkpoint."""

    name: str
    """A name that no other job of the group has."""
    config: TrainConfig
    run_dir: Path
    """The run directory, inside the config's output directory."""
    run_suffix: str
    """The last part of the name of the run directory."""
    log_path: Path
    stop: "StopRules"
    start_method: str
    """The start method of env workers, the same as in a single run."""
    make_callback: "Callable[[], Callback] | None"
    """The factory of the callback that prints the run's progress to its log."""
    lock_seconds: float = 0.0
    """How long to wait for another process that uses the run directory."""

    def pack(self) -> "PackedJob":
        """Encode the job, so that processes that only pass it on need not import its objects."""
        return PackedJob(self.name, pickle.dumps(self))


@dataclass(frozen=True)
class PackedJob:
    """A job on its way to the process that trains it."""

    name: str
    content: bytes
    """A pickled `RunJob`."""

    @property
    def process_name(self) -> str:
        """The name of the process that trains the job."""
        return f"{_NAME_PREFIX}{self.name}"


@dataclass(frozen=True)
class ProgressUpdate:
    """The current step of a run and its latest metrics."""

    step: int
    metrics: MetricDict


@dataclass(frozen=True)
class Outcome:
    """The final status of a run; a process that is killed cannot send it."""

    status: SeedStatus
    reason: str | None = None
    is_lost: bool = False
    """Whether the process ended without saying why."""


def in_run_process() -> bool:
    """Return whether this code runs in the process of a run, which also imports the script that started the group."""
    return multiprocessing.current_process().name.startswith(_NAME_PREFIX)
