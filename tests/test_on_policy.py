from typing import Any

import pytest
import sample_envs  # noqa: F401  (registers the envs)
from conftest import MakeConfig

from rl_training.algorithms.ppo import PPOLearner
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.runtime.ppo_trainer import train_ppo


def test_every_rollout_goes_on_where_the_last_one_stopped_and_keeps_nothing_of_it(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/Counting-v0` shows (episode, step), here with a time limit of 3; a rollout has 8 steps."""
    first: list[Any] = []
    following: list[Any] = []
    after_limits: list[Any] = []
    compute = PPOLearner.compute_advantages

    def watch(learner: PPOLearner, rollout: RolloutBuffer, last_obs: Any) -> None:
        first.append(rollout.obs[0, 0].tolist())
        following.append(last_obs[0].tolist())
        after_limits.append(rollout.truncated_last_obs().tolist())
        compute(learner, rollout, last_obs)

    monkeypatch.setattr(PPOLearner, "compute_advantages", watch)
    config = make_config(
        env_id="tests/Counting-v0",
        env_kwargs={"ending": "truncated"},
        num_envs=1,
        total_timesteps=24,
        algo_kwargs={"num_steps": 8, "minibatch_size": 8},
    )
    train_ppo(config)
    # The env's steps 0, 8 and 16, then 8, 16 and 24: what follows a rollout is where the next one begins.
    assert first == [[0, 0], [2, 2], [5, 1]]
    assert following == [[2, 2], [5, 1], [8, 0]]
    assert after_limits == [[[0, 3], [1, 3]], [[2, 3], [3, 3], [4, 3]], [[5, 3], [6, 3], [7, 3]]]
