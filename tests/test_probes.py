"""The probe environments have known values and policies; PPO must find them."""

import gymnasium
import numpy as np
import pytest
import torch
from conftest import MakeConfig

from rl_training.api import PPO
from rl_training.envs.probes import CONTINUOUS_OPTIMUM, PROBES, register_probes

SETTINGS = {
    "num_steps": 32,
    "minibatch_size": 64,
    "update_epochs": 8,
    "hidden_sizes": [32],
    "learning_rate": 5e-3,
    "gamma": 0.9,
}


def solve(make_config: MakeConfig, probe: str, total_timesteps: int = 8_000, **params: object) -> PPO:
    config = make_config(
        env_id=f"rl_training/{probe}-v0",
        num_envs=8,
        total_timesteps=total_timesteps,
        eval_episodes=0,
        algo_kwargs={**SETTINGS, **params},
    )
    model = PPO(config)
    model.learn()
    return model


def value(model: PPO, *observations: float) -> list[float]:
    learner = model._live_agent().learner
    policy = learner.policy
    params = policy.layout.tensors(policy.flat)  # type: ignore[attr-defined]  # PPO's policy has values
    obs = torch.tensor(observations, dtype=torch.float32).reshape(-1, 1)
    return [float(number) for number in policy.values(params, obs)]  # type: ignore[attr-defined]  # likewise


def test_a_constant_reward_is_the_value(make_config: MakeConfig) -> None:
    assert value(solve(make_config, "ConstantRewardProbe"), 0.0) == pytest.approx([1.0], abs=0.05)


def test_the_value_depends_on_the_observation(make_config: MakeConfig) -> None:
    assert value(solve(make_config, "ObservedRewardProbe"), -1.0, 1.0) == pytest.approx([-1.0, 1.0], abs=0.1)


def test_a_later_reward_is_discounted_once(make_config: MakeConfig) -> None:
    assert value(solve(make_config, "DiscountProbe"), 0.0, 1.0) == pytest.approx([0.9, 1.0], abs=0.05)


def test_a_time_limit_is_not_a_failure(make_config: MakeConfig) -> None:
    # Treated as a failure, five steps of reward 1 are worth 4.1 at most; without the limit, 1 / (1 - 0.9) = 10.
    model = solve(make_config, "TimeLimitProbe", total_timesteps=40_000)
    assert value(model, 0.0) == pytest.approx([10.0], abs=0.5)


def test_the_rewarded_action_is_chosen(make_config: MakeConfig) -> None:
    model = solve(make_config, "ActionRewardProbe")
    assert model.predict(np.zeros(1, np.float32)) == 1


def test_the_action_depends_on_the_observation(make_config: MakeConfig) -> None:
    model = solve(make_config, "MatchProbe")
    assert model.predict(np.array([[-1.0], [1.0]], np.float32)).tolist() == [0, 1]  # type: ignore[union-attr]  # a batch
    assert model.evaluate(20)["eval_return_mean"] == 1.0


def test_a_continuous_action_finds_its_optimum_inside_asymmetric_bounds(make_config: MakeConfig) -> None:
    model = solve(make_config, "ContinuousProbe", total_timesteps=20_000)
    assert model.predict(np.zeros(1, np.float32)) == pytest.approx(np.array(CONTINUOUS_OPTIMUM), abs=0.5)
    assert model.evaluate(5)["eval_return_mean"] > -0.02


def test_a_continuous_action_depends_on_the_observation(make_config: MakeConfig) -> None:
    model = solve(make_config, "ContinuousMatchProbe", total_timesteps=20_000)
    actions = np.asarray(model.predict(np.array([[-1.0], [1.0]], np.float32)))
    assert actions[:, 0] == pytest.approx([0.25, 0.75], abs=0.08)


def test_every_probe_passes_gymnasiums_own_checker() -> None:
    register_probes()
    for env_id in PROBES:
        env = gymnasium.make(env_id)
        obs, _ = env.reset(seed=1)
        assert env.observation_space.contains(obs)
        assert len(env.step(env.action_space.sample())) == 5
