"""PPO as an algorithm that can be trained."""

from rl_training.algorithms.ppo import PPOLearner, PPOParams
from rl_training.runtime.on_policy import on_policy_algorithm

PPO = on_policy_algorithm("ppo", PPOParams, PPOLearner)
train_ppo = PPO.train_fn
