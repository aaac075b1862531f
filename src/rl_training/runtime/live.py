"""What callbacks can do with a run in progress: predict, evaluate, save, and reach the training envs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.envs.access import EnvAccess
from rl_training.experiment.checkpointing import CheckpointState, save_model
from rl_training.runtime.agents import Agent, predict_action, with_evaluation
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
        return predict_action(self._agent(), obs, deterministic, action_masks)

    def _agent(self) -> Agent:
        return Agent(self._state.config, self._learner, self.env.observation_space, self.env.action_space)

    def evaluate(self, num_episodes: int, deterministic: bool | None, seed: int | None) -> MetricDict:
        """Play whole episodes; a signal does not cut them short, because the callback's decision depends on them."""
        config = with_evaluation(self._agent(), eval_deterministic=deterministic, eval_seed=seed).config
        evaluator = self._evaluator if config is self._state.config else Evaluator(config)
        try:
            return evaluator.evaluate(self._learner.policy, num_episodes, self._state.global_step).metrics
        finally:
            if evaluator is not self._evaluator:
                evaluator.close()

    def save(self, path: Path | str) -> Path:
        """Write a single file that does not belong to the checkpoints of the run."""
        return save_model(path, self._read_checkpoint())
