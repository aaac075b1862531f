"""What callbacks can do with a run in progress: predict, evaluate, save, and reach the training envs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.envs.access import EnvAccess
from rl_training.experiment.checkpointing import CheckpointState, save_model
from rl_training.runtime.agents import Agent, predict_action
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.types import MetricDict


class RunAccess:
    """The learner, the evaluation envs and the training envs of a run in progress."""

    def __init__(
        self,
        state: TrainerState,
        learner: Learner,
        evaluator: Evaluator,
        env: EnvAccess,
        read_checkpoint: Callable[[], CheckpointState],
    ) -> None:
        """`read_checkpoint` returns the whole state of the run, with all its experience."""
        self.env = env
        self._state, self._learner, self._evaluator = state, learner, evaluator
        self._read_checkpoint = read_checkpoint

    def predict(self, obs: Any, deterministic: bool, action_masks: Any) -> Any:
        """Return the action for one observation, or one action per row of a batch."""
        agent = Agent(self._state.config, self._learner, self.env.observation_space, self.env.action_space)
        return predict_action(agent, obs, deterministic, action_masks)

    def evaluate(self, num_episodes: int) -> MetricDict:
        """Play whole episodes; a signal does not cut them short, because the callback's decision depends on them."""
        return self._evaluator.evaluate(self._learner.policy, num_episodes, self._state.global_step).metrics

    def save(self, path: Path | str) -> Path:
        """Write a single file that does not belong to the checkpoints of the run."""
        return save_model(path, self._read_checkpoint())
