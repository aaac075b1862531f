"""The definition of an algorithm, as the command line, the Python classes and the workflows use it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from rl_training.algorithms.base import LearnerParams
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.locking import RunLock
from rl_training.runtime.agents import Agent, BuildLearner
from rl_training.runtime.callbacks import Listener
from rl_training.runtime.plan import TrainingPlan
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.types import MetricDict


class TrainFn(Protocol):
    """Trains from the start, or on from `checkpoint_state`: in a new directory, or in the one that `lock` holds."""

    def __call__(
        self,
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: CheckpointState | None = None,
        callbacks: Iterable[Listener] | None = None,
        lock: RunLock | None = None,
        params: LearnerParams | None = None,
    ) -> TrainResult:
        """Train to the config's budget; `params` are those of the config, if they have been validated before."""


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm as train, evaluate, resume, API and command line see it."""

    name: str
    train_fn: TrainFn
    evaluate_fn: Callable[[Agent, int], MetricDict]
    predict_fn: Callable[[Agent, Any, bool, Any], Any]
    """Takes an agent, observations, whether to be deterministic, and masks of legal actions or none."""
    params_model: type[LearnerParams]
    """What `algo_kwargs` may hold."""
    resolve_params_fn: Callable[[TrainConfig], LearnerParams]
    """Validates `algo_kwargs`, also against the rest of the config."""
    build_learner_fn: BuildLearner
    plan_fn: Callable[[TrainConfig], TrainingPlan]
