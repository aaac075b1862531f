"""Learners as a run with a given config builds them."""

from typing import Any

from gymnasium import spaces

from rl_training.algorithms.dqn import DQNLearner, DQNParams
from rl_training.algorithms.ppo import PPOLearner, PPOParams
from rl_training.algorithms.sac import SACLearner, SACParams
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.learners import learner_setup
from rl_training.runtime.training import resolve_learner_params

AnySpace = spaces.Space[Any]


def build_ppo_learner(config: TrainConfig, observation_space: AnySpace, action_space: AnySpace) -> PPOLearner:
    return PPOLearner(resolve_learner_params(PPOParams, config), learner_setup(config, observation_space, action_space))


def build_dqn_learner(config: TrainConfig, observation_space: AnySpace, action_space: AnySpace) -> DQNLearner:
    return DQNLearner(resolve_learner_params(DQNParams, config), learner_setup(config, observation_space, action_space))


def build_sac_learner(config: TrainConfig, observation_space: AnySpace, action_space: AnySpace) -> SACLearner:
    return SACLearner(resolve_learner_params(SACParams, config), learner_setup(config, observation_space, action_space))
