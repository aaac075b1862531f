"""SAC as an algorithm that can be trained."""

from rl_training.algorithms.sac import SACLearner, SACParams
from rl_training.runtime.off_policy import off_policy_algorithm

SAC = off_policy_algorithm("sac", SACParams, SACLearner)
train_sac = SAC.train_fn
