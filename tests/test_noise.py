from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeConfig
from gymnasium import spaces

from rl_training.envs.factory import make_vector_env
from rl_training.errors import ConfigError, EnvironmentSetupError
from rl_training.policies.noise import CorrelatedNoise, WhiteNoise, build_noise
from rl_training.runtime.collector import Collection, collect_rollout
from rl_training.runtime.ppo_trainer import build_ppo_learner, build_rollout, resolve_ppo_params
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.streams import make_stream

RHO = 0.8


def make_noise(num_envs: int = 1_000) -> CorrelatedNoise:
    return CorrelatedNoise(np.random.default_rng(0), RHO, (num_envs, 2))


def correlation(left: Any, right: Any) -> float:
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1])


def test_without_correlation_the_noise_is_the_streams_own() -> None:
    noise = build_noise(make_stream(1, "acting"), spaces.Box(-1.0, 1.0, (2,)), correlation=0.0, num_envs=3)
    assert isinstance(noise, WhiteNoise)
    drawn = [noise.normal((3, 2)) for _ in range(2)]
    assert np.array_equal(drawn, make_stream(1, "acting").standard_normal((2, 3, 2), dtype=np.float32))


def test_correlated_noise_is_standard_normal_at_every_step_and_remembers_the_last() -> None:
    noise = make_noise()
    steps = [noise.normal((1_000, 2)) for _ in range(4)]
    for step in steps:
        assert step.dtype == np.float32
        assert (step.mean(), step.std()) == pytest.approx((0.0, 1.0), abs=0.06)
    assert [correlation(steps[0], step) for step in steps] == pytest.approx([1.0, 0.8, 0.64, 0.512], abs=0.05)
    assert correlation(steps[0][:, 0], steps[0][:, 1]) == pytest.approx(0.0, abs=0.08)


def test_a_new_episode_begins_with_new_noise_in_its_own_env_alone() -> None:
    noise = make_noise()
    begun = np.arange(1_000) < 500
    before = noise.normal((1_000, 2))
    noise.begin_episodes(begun)
    after = noise.normal((1_000, 2))
    assert after[begun].std() == pytest.approx(1.0, abs=0.06)
    assert correlation(before[begun], after[begun]) == pytest.approx(0.0, abs=0.08)
    assert correlation(before[~begun], after[~begun]) == pytest.approx(RHO, abs=0.05)


def test_the_collector_lets_the_noise_begin_anew_where_an_episode_ended(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(
        env_id="Pendulum-v1", num_envs=2, env_kwargs={"max_episode_steps": 6}, algo_kwargs={"noise_correlation": RHO}
    )
    envs = make_vector_env(config)
    learner = build_ppo_learner(config, envs.single_observation_space, envs.single_action_space)
    begun: list[tuple[int, list[bool]]] = []
    collection = Collection(envs.reset()[0])
    monkeypatch.setattr(
        learner, "begin_episodes", lambda ended: begun.append((collection.num_env_steps, ended.tolist()))
    )
    collect_rollout(envs, learner, build_rollout(config, learner), collection, interrupted=lambda: False)
    assert begun == [(12, [True, True]), (24, [True, True])]


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_predicting_leaves_the_noise_of_training_alone(make_config: MakeConfig, algo: str) -> None:
    config = make_config(algo=algo, env_id="Pendulum-v1", algo_kwargs={"noise_correlation": RHO})
    envs = make_vector_env(config)
    learner: Any = get_algorithm_spec(algo).build_learner_fn(
        config, envs.single_observation_space, envs.single_action_space
    )
    before = learner.state_dict()["policy"]["acting_noise"]
    assert learner.policy.predict(np.zeros((3, 3), np.float32), deterministic=False).shape == (3, 1)
    assert torch.equal(learner.state_dict()["policy"]["acting_noise"], before)


def test_correlation_is_for_continuous_actions(make_config: MakeConfig) -> None:
    config = make_config(algo_kwargs={"noise_correlation": 0.5})
    with pytest.raises(EnvironmentSetupError, match=r"noise_correlation=0.5 needs continuous actions, .*Discrete\(2\)"):
        build_ppo_learner(config, spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2))


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_correlation_lies_between_0_and_1(make_config: MakeConfig, value: float) -> None:
    with pytest.raises(ConfigError, match=f"algo_kwargs.noise_correlation={value}"):
        resolve_ppo_params(make_config(algo_kwargs={"noise_correlation": value}))
