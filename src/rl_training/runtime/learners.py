"""Building the learner of a run from its config and its spaces, in any process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gymnasium import spaces

from rl_training.algorithms.base import LearnerParams, LearnerSetup, OffPolicyLearner, OnPolicyLearner
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.run_utils import resolve_device

ParamsT = TypeVar("ParamsT", bound=LearnerParams)
LearnerT = TypeVar("LearnerT", bound=OnPolicyLearner | OffPolicyLearner)


def learner_setup(
    config: TrainConfig, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> LearnerSetup:
    """Return what a learner for these spaces gets from a run with this config."""
    described = repr((config.algo, sorted(config.algo_kwargs.items()), observation_space, action_space))
    return LearnerSetup(
        observation_space=observation_space,
        action_space=action_space,
        device=resolve_device(config.device),
        seed=config.seed,
        num_envs=config.num_envs,
        total_timesteps=config.total_timesteps,
        compile_as=described if config.compile == "on" else None,
    )


@dataclass(frozen=True)
class LearnerFactory(Generic[ParamsT, LearnerT]):
    """Builds learners with the same parameters. It can be sent to other processes."""

    make: Callable[[ParamsT, LearnerSetup], LearnerT]
    params: ParamsT

    def build(
        self, config: TrainConfig, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> LearnerT:
        """Build the learner with which a run of this config starts, for these spaces."""
        return self.make(self.params, learner_setup(config, observation_space, action_space))
