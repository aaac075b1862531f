"""Checking and opening the trackers that a config names."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from rl_training.errors import Problem
from rl_training.experiment.config import TrackerName, TrainConfig
from rl_training.experiment.trackers.base import TrackedRun, Tracker
from rl_training.experiment.trackers.csv_tracker import open_csv
from rl_training.experiment.trackers.guard import BackgroundTracker, GuardedTracker
from rl_training.experiment.trackers.mlflow_tracker import open_mlflow
from rl_training.experiment.trackers.tensorboard_tracker import open_tensorboard
from rl_training.experiment.trackers.wandb_tracker import open_wandb
from rl_training.experiment.validation import config_error

_LOCAL: dict[TrackerName, Callable[[TrackedRun], Tracker]] = {"tensorboard": open_tensorboard, "csv": open_csv}
# Each name is also the name of a package and of the extra that installs it.
_REMOTE: dict[TrackerName, Callable[[TrackedRun], Tracker]] = {"wandb": open_wandb, "mlflow": open_mlflow}

_CLOSING_SECONDS = 30.0  # maximum time that a finished run waits for a remote tracker


def check_trackers(config: TrainConfig) -> None:
    """Refuse a config with a tracker whose package is not installed."""
    missing = [name for name in config.trackers if name in _REMOTE and not _installed(name)]
    if missing:
        remedy = f"pip install 'rl-training[{','.join(missing)}]'"
        names = ", ".join(missing)
        problem = Problem(("trackers",), f"trackers={list(config.trackers)}: {names} not installed; {remedy}")
        raise config_error([problem])


def _installed(package: str) -> bool:
    spec = find_spec(package)
    # A plain folder of that name, such as the one that wandb creates, is found too but has no origin.
    return spec is not None and spec.origin is not None


def open_trackers(run: TrackedRun) -> list[Tracker]:
    """Open the trackers that the run's config names. None of them can stop the run."""
    return [_guarded(name, run).open() for name in run.config.trackers]


def _guarded(name: TrackerName, run: TrackedRun) -> GuardedTracker:
    if name in _LOCAL:
        return GuardedTracker(name, partial(_LOCAL[name], run))
    return GuardedTracker(name, lambda: BackgroundTracker(partial(_REMOTE[name], run), _CLOSING_SECONDS).start())
