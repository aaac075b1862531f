"""DQN as an algorithm that can be trained."""

from rl_training.algorithms.dqn import DQNLearner, DQNParams
from rl_training.runtime.off_policy import off_policy_algorithm

DQN = off_policy_algorithm("dqn", DQNParams, DQNLearner)
train_dqn = DQN.train_fn
