"""DQN on CartPole with the whole training loop on one page: act, store, learn from the replay buffer, evaluate.

The script uses the parts of the package but not its trainer. With the same seed, it ends with the same weights as the
trainer.
"""

from reference import run

from rl_training.algorithms.dqn import DQNLearner, DQNParams
from rl_training.envs.factory import make_vector_env
from rl_training.experiment.config import TrainConfig, resolve_params
from rl_training.runtime.learners import learner_setup
from rl_training.runtime.off_policy import build_replay, updates_owed


def train(config: TrainConfig) -> DQNLearner:
    """Train until the budget is used up, and print the returns of finished episodes."""
    envs = make_vector_env(config)
    setup = learner_setup(config, envs.single_observation_space, envs.single_action_space)
    learner = DQNLearner(resolve_params(DQNParams, config), setup)
    replay = build_replay(config, learner)
    actor = learner.make_actor(range(config.num_envs))
    obs, _ = envs.reset()
    step = 0
    while step < config.total_timesteps:
        actions = actor.act(obs, step)  # uniform during the warm-up, then epsilon-greedy
        next_obs, rewards, terminated, truncated, infos = envs.step(actor.to_env(actions))
        # Only a termination removes the bootstrapped value from the target. A time limit only ends the episode.
        replay.add(obs=obs, actions=actions, rewards=rewards, next_obs=next_obs, dones=terminated, truncated=truncated)
        ended = terminated | truncated
        learner.normalizer.observe(obs, rewards, ended)
        obs = next_obs
        if ended.any():
            obs, _ = envs.reset(options={"reset_mask": ended})
            print(f"step {step:6}  return {infos['episode']['r'][ended].mean():6.1f}")
        before, step = step, step + config.num_envs
        owed = updates_owed(learner.params, before, step)
        if owed:
            learner.update(replay, step, owed)
    envs.close()
    return learner


if __name__ == "__main__":
    run("dqn/cartpole.yaml", train)
