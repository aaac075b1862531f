"""The interface of training: a `Trainer` returns a `TrainResult`, and callbacks receive a `TrainerState`."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from rl_training.envs.access import EnvAccess
from rl_training.errors import ConfigError, TrainingStateError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.saved import ResumeNote
from rl_training.runtime.types import MetricDict

Status = Literal["completed", "stopped", "interrupted", "failed"]

_METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*")
_MAX_METRIC_NAME = 200
_OWN_METRICS = ("rollout", "train", "eval", "time", "step")  # the first parts of names that the package logs


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


class LiveRun(Protocol):
    """The parts of a run in progress that callbacks may use."""

    env: EnvAccess

    def predict(self, obs: Any, deterministic: bool, action_masks: Any) -> Any:
        """Return actions of the policy as it is now."""

    def evaluate(self, num_episodes: int, deterministic: bool | None, seed: int | None) -> MetricDict:
        """Play whole episodes with the policy as it is now."""

    def save(self, path: Path | str) -> Path:
        """Write the model as it is now to a file."""


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
    live: LiveRun | None = field(default=None, repr=False)
    """The running parts behind the methods below; none if there are none, as in a test or after the run."""
    ended: bool = False
    """Whether the last checkpoint is written, so that nothing can be logged or changed any more."""

    def predict(self, obs: Any, deterministic: bool = True, action_masks: Any = None) -> Any:
        """Return the action of the policy as it is now, for one observation or for each row of a batch."""
        return self._live().predict(obs, deterministic, action_masks)

    def evaluate(
        self, num_episodes: int = 10, *, deterministic: bool | None = None, seed: int | None = None
    ) -> MetricDict:
        """Play whole episodes with the policy as it is now, in envs of their own; training is not affected.

        `deterministic` and `seed` replace the config's `eval_deterministic` and `eval_seed`.
        """
        return self._live().evaluate(num_episodes, deterministic, seed)

    def save(self, path: Path | str) -> Path:
        """Write the model as it is now to a file that `PPO.load` and the command line can read."""
        return self._live().save(path)

    @property
    def env(self) -> EnvAccess:
        """The training envs: read and set their attributes, and call their methods."""
        self._refuse_after_end("the envs are not available")
        return self._live().env

    def log(self, name: str, value: float) -> None:
        """Add a metric of your own, such as `curriculum/level`, to the next log line and to all later ones."""
        self._refuse_after_end("nothing can be logged")
        if not _METRIC_NAME.fullmatch(name) or len(name) > _MAX_METRIC_NAME:
            raise ConfigError(f"log({name!r}): use letters, digits and any of _ . - in parts divided by /")
        if name.partition("/")[0] in _OWN_METRICS:
            raise ConfigError(f"log({name!r}): names that begin with {', '.join(_OWN_METRICS)} belong to the package")
        number = value.item() if isinstance(value, np.generic) else value
        if type(number) not in (int, float) or not math.isfinite(number):
            raise ConfigError(f"log({name!r}) was given {value!r}: give a finite number")
        self.metrics[name] = number

    def _live(self) -> LiveRun:
        if self.live is None:
            raise TrainingStateError("no run is in progress: use this in a callback, while the run trains")
        return self.live

    def _refuse_after_end(self, consequence: str) -> None:
        if self.ended:
            raise TrainingStateError(f"the run has ended and its last checkpoint is written: {consequence}")

    def request_stop(self, reason: str) -> None:
        """End training after the current iteration; if called again, the first reason is kept."""
        self.stop_reason = self.stop_reason or reason
