"""The probe environments have known values and policies; every algorithm that supports them must find them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from conftest import MakeConfig

from rl_training.api.algorithms import DQN, PPO, SAC, Algorithm
from rl_training.envs.probes import CONTINUOUS_OPTIMUM, PROBES, register_probes

REPLAY = {
    "buffer_capacity": 2_000,
    "batch_size": 64,
    "learning_starts": 200,
    "train_frequency": 8,
    "gradient_steps": 4,
    "hidden_sizes": [32],
    "gamma": 0.9,
}
# Class, settings, and env steps for the easy probes.
MODELS: dict[str, tuple[type[Algorithm], dict[str, Any], int]] = {
    "ppo": (
        PPO,
        {
            "num_steps": 32,
            "minibatch_size": 64,
            "update_epochs": 8,
            "hidden_sizes": [32],
            "learning_rate": 5e-3,
            "gamma": 0.9,
        },
        4_000,
    ),
    "dqn": (DQN, {**REPLAY, "learning_rate": 5e-3, "target_update_interval": 40, "exploration_fraction": 0.5}, 1_200),
    "sac": (SAC, {**REPLAY, "learning_rate": 5e-3, "tau": 0.05, "alpha": 0.01}, 1_200),
}
DISCRETE = pytest.mark.parametrize("algo", ["ppo", "dqn"])
CONTINUOUS = pytest.mark.parametrize("algo", ["ppo", "sac"])


def solve(make_config: MakeConfig, algo: str, probe: str, factor: float = 1.0) -> Algorithm:
    model_class, settings, steps = MODELS[algo]
    config = make_config(
        algo=algo,
        env_id=f"rl_training/{probe}-v0",
        num_envs=8,
        total_timesteps=int(factor * steps),
        eval_episodes=0,
        checkpoint_interval=0,
        algo_kwargs=settings,
    )
    model = model_class(config)
    model.learn()
    return model


def values(model: Algorithm, *observations: float) -> list[float]:
    """V of each observation: PPO's own, or the best action's Q."""
    learner: Any = model._live_agent().learner
    obs = torch.tensor(observations, dtype=torch.float32).reshape(-1, 1)
    params = learner.policy.params.tensors
    if model.algo == "ppo":
        return [float(value) for value in learner.policy.values(params, obs)]
    if model.algo == "dqn":
        return [float(value) for value in learner.policy.q_values(params, obs).max(dim=1).values]
    actions = learner.policy.draw(params, obs, torch.zeros(len(obs), learner.policy.actions.size)).actions
    critics = learner.critics.forward(learner.critics.params.tensors, obs, actions)
    return [float(value) for value in critics.min(dim=0).values]


@DISCRETE
def test_a_constant_reward_is_the_value(make_config: MakeConfig, algo: str) -> None:
    assert values(solve(make_config, algo, "ConstantRewardProbe"), 0.0) == pytest.approx([1.0], abs=0.05)


@DISCRETE
def test_the_value_depends_on_the_observation(make_config: MakeConfig, algo: str) -> None:
    model = solve(make_config, algo, "ObservedRewardProbe")
    assert values(model, -1.0, 1.0) == pytest.approx([-1.0, 1.0], abs=0.1)


@DISCRETE
def test_a_later_reward_is_discounted_once(make_config: MakeConfig, algo: str) -> None:
    assert values(solve(make_config, algo, "DiscountProbe"), 0.0, 1.0) == pytest.approx([0.9, 1.0], abs=0.07)


@pytest.mark.parametrize(
    ("algo", "probe", "factor"),
    [("ppo", "TimeLimitProbe", 5.0), ("dqn", "TimeLimitProbe", 3.0), ("sac", "ContinuousTimeLimitProbe", 3.0)],
)
def test_a_time_limit_is_not_a_failure(make_config: MakeConfig, algo: str, probe: str, factor: float) -> None:
    # Treated as a failure, five steps of reward 1 are worth 4.1 at most; without the limit, 1 / (1 - 0.9) = 10.
    model = solve(make_config, algo, probe, factor)
    assert values(model, 0.0) == pytest.approx([10.0], abs=0.6)


@DISCRETE
def test_the_rewarded_action_is_chosen(make_config: MakeConfig, algo: str) -> None:
    assert solve(make_config, algo, "ActionRewardProbe").predict(np.zeros(1, np.float32)) == 1


@DISCRETE
def test_the_action_depends_on_the_observation(make_config: MakeConfig, algo: str) -> None:
    model = solve(make_config, algo, "MatchProbe")
    assert np.asarray(model.predict(np.array([[-1.0], [1.0]], np.float32))).tolist() == [0, 1]
    assert model.evaluate(20)["eval_return_mean"] == 1.0


@CONTINUOUS
def test_a_continuous_action_finds_its_optimum_inside_asymmetric_bounds(make_config: MakeConfig, algo: str) -> None:
    model = solve(make_config, algo, "ContinuousProbe", factor=2.5)
    assert model.predict(np.zeros(1, np.float32)) == pytest.approx(np.array(CONTINUOUS_OPTIMUM), abs=0.5)
    assert model.evaluate(5)["eval_return_mean"] > -0.02


@CONTINUOUS
def test_a_continuous_action_depends_on_the_observation(make_config: MakeConfig, algo: str) -> None:
    model = solve(make_config, algo, "ContinuousMatchProbe", factor=2.5)
    actions = np.asarray(model.predict(np.array([[-1.0], [1.0]], np.float32)))
    assert actions[:, 0] == pytest.approx([0.25, 0.75], abs=0.08)


def test_every_probe_is_a_sound_environment() -> None:
    register_probes()
    for env_id in PROBES:
        env = gymnasium.make(env_id)
        obs, _ = env.reset(seed=1)
        assert env.observation_space.contains(obs)
        assert len(env.step(env.action_space.sample())) == 5
