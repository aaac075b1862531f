"""PPO on CartPole with the whole training loop on one page: collect, advantages, update, evaluate.

The script uses the parts of the package but not its trainer. With the same seed, it ends with the same weights as the
trainer.
"""

import numpy as np
from reference import run

from rl_training.algorithms.ppo import PPOLearner, PPOParams
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.factory import make_vector_env
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.experiment.config import TrainConfig, resolve_params
from rl_training.policies.acting import Actor
from rl_training.policies.base import Array
from rl_training.runtime.learners import learner_setup
from rl_training.runtime.on_policy import build_rollout


def collect(envs: VectorEnv, actor: Actor, rollout: RolloutBuffer, obs: Array, step: int) -> tuple[Array, list[float]]:
    """Fill the rollout from env step `step` on; return the next observations and the returns of ended episodes."""
    returns: list[float] = []
    rollout.reset()
    while not rollout.full:
        actions = actor.act(obs, step + len(rollout))
        next_obs, rewards, terminated, truncated, infos = envs.step(actor.to_env(actions))
        ended = terminated | truncated
        rollout.add(
            obs=obs,
            actions=actions,
            rewards=rewards,
            dones=ended,
            # A time limit is not a terminal state: the value after it still counts (Pardo et al. 2018).
            truncated=truncated & ~terminated,
            last_obs=next_obs,
        )
        if ended.any():
            returns += infos["episode"]["r"][ended].tolist()
            next_obs, _ = envs.reset(options={"reset_mask": ended})
        obs = next_obs
    return obs, returns


def train(config: TrainConfig) -> PPOLearner:
    """Train until the budget is used up, and print the mean return regularly."""
    envs = make_vector_env(config)
    setup = learner_setup(config, envs.single_observation_space, envs.single_action_space)
    learner = PPOLearner(resolve_params(PPOParams, config), setup)
    rollout = build_rollout(config, learner)
    actor = learner.make_actor(range(config.num_envs))
    obs, _ = envs.reset()
    step = 0
    while step < config.total_timesteps:
        obs, returns = collect(envs, actor, rollout, obs, step)
        learner.compute_advantages(rollout, obs)
        update = learner.update(rollout, step)
        step += len(rollout)
        if returns and step % 8192 == 0:
            print(f"step {step:6}  return {np.mean(returns):6.1f}  loss {update.metrics['loss']:8.4f}")
    envs.close()
    return learner


if __name__ == "__main__":
    run("ppo/cartpole.yaml", train)
