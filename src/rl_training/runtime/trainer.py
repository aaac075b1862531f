"""The interface of training: a `Trainer` returns a `TrainResult`, and callbacks receive a `TrainerState`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.saved import ResumeNote
from rl_training.runtime.types import MetricDict

Status = Literal["completed", "stopped", "interrupted", "failed"]


@dataclass(frozen=True)
class TrainResult:
    """The directory of a run, its newest checkpoint and its final metrics."""

    run_dir: Path
    checkpoint_path: Path
    metrics: MetricDict
    status: Status = "completed"


class Trainer(Protocol):
    """A run that is set up and waits for `train`."""

    def train(self) -> TrainResult:
        """Train to the end; a trainer trains once."""


@dataclass
class TrainerState:
    """A run in progress, as callbacks see it."""

    algorithm: str
    run_dir: Path
    config: TrainConfig
    global_step: int = 0
    """Env steps so far, all envs counted."""
    num_updates: int = 0
    """Gradient steps so far."""
    num_episodes: int = 0
    """Training episodes finished so far."""
    best_return: float | None = None
    """Best mean return of an evaluation so far."""
    best_value: float | None = None
    """Best value so far of the metric that decides which checkpoint is the best, the config's `best_metric`."""
    metrics: MetricDict = field(default_factory=dict)
    """The newest value of every logged metric."""
    stop_reason: str | None = None
    resumed: ResumeNote | None = None
    """The note about the resume, if this run was resumed."""
    decisions: dict[str, str] = field(default_factory=dict)
    """The value chosen for each config field set to `auto`, and the reason, by field."""

    def request_stop(self, reason: str) -> None:
        """End training after the current iteration; if called again, the first reason is kept."""
        self.stop_reason = self.stop_reason or reason
