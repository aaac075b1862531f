"""What acting draws: a function of (seed, purpose, env, step), in blocks, with the distribution it claims."""

from typing import Any

import numpy as np
import pytest
from conftest import MakeConfig
from gymnasium import spaces
from sample_learners import build_ppo_learner

from rl_training.algorithms.ppo import PPOParams
from rl_training.envs.factory import make_vector_env
from rl_training.errors import ConfigError, EnvironmentSetupError
from rl_training.policies.acting import CorrelatedDraws, Draws, Kind
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.training import resolve_learner_params

RHO = 0.8
KINDS = pytest.mark.parametrize("kind", ["uniform", "normal", "gumbel", "logistic"])


def make_draws(kind: Kind = "normal", size: int = 2, num_envs: int = 1_000, **changes: Any) -> Draws:
    values: dict[str, Any] = {"seed": 1, "purpose": "acting", "num_envs": num_envs, **changes}
    return Draws(kind, size, **values)


def take(draws: Draws | CorrelatedDraws, num_steps: int, num_envs: int = 1_000) -> Any:
    return np.array([draws.at(step * num_envs).copy() for step in range(num_steps)])


def correlation(left: Any, right: Any) -> float:
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1])


@KINDS
@pytest.mark.parametrize("envs", [[0], [3, 4, 5], list(range(7, 13)), [12, 2]])
def test_the_grouping_of_envs_changes_no_bit(kind: Kind, envs: list[int]) -> None:
    together = take(make_draws(kind, 3, 13), 700, 13)
    alone = take(make_draws(kind, 3, 13, envs=envs), 700, 13)
    assert alone.tobytes() == np.ascontiguousarray(together[:, envs]).tobytes()


@KINDS
def test_a_step_draws_the_same_whenever_it_is_drawn(kind: Kind) -> None:
    straight = take(make_draws(kind, 5, 4), 2_000, 4)
    draws = make_draws(kind, 5, 4)
    for step in (1_999, 0, 1_024, 1_023, 7, 7, 500):
        assert draws.at(4 * step).tobytes() == straight[step].tobytes()


@pytest.mark.parametrize("changes", [{"seed": 2}, {"purpose": "warm_up"}, {"envs": range(1, 5)}])
def test_other_seeds_purposes_and_envs_draw_other_numbers(changes: dict[str, Any]) -> None:
    one = take(make_draws(num_envs=4), 500, 4)
    other = take(make_draws(num_envs=4, **changes), 500, 4)
    assert abs(correlation(one, other)) < 0.06


@KINDS
def test_numbers_have_the_distribution_of_their_kind(kind: Kind) -> None:
    numbers = np.sort(take(make_draws(kind, 2, 100), 1_000, 100).ravel().astype(np.float64))
    expected = (np.arange(len(numbers)) + 0.5) / len(numbers)
    if kind == "uniform":
        shares = numbers
        assert 0.0 <= numbers[0] < numbers[-1] < 1.0
    elif kind == "gumbel":
        shares = np.exp(-np.exp(-numbers))
    elif kind == "logistic":
        shares = 1.0 / (1.0 + np.exp(-numbers))
    else:
        import torch

        shares = torch.special.ndtr(torch.from_numpy(numbers)).numpy()
    assert np.abs(shares - expected).max() < 1.63 / np.sqrt(len(numbers))  # Kolmogorov and Smirnov, 1 percent


def test_numbers_do_not_depend_on_their_neighbours() -> None:
    numbers = take(make_draws("normal", 3, 200), 400, 200)
    pairs = [(numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1]), (numbers[..., 1:], numbers[..., :-1])]
    for left, right in pairs:
        assert abs(correlation(left, right)) < 0.01
        assert abs(correlation(left**2, right**2)) < 0.01


def test_correlated_noise_is_standard_normal_at_every_step_and_remembers_the_last() -> None:
    steps = take(CorrelatedDraws(make_draws(), RHO, (1_000, 2)), 4)
    assert steps.dtype == np.float32
    for step in steps:
        assert (step.mean(), step.std()) == pytest.approx((0.0, 1.0), abs=0.06)
    assert [correlation(steps[0], step) for step in steps] == pytest.approx([1.0, 0.8, 0.64, 0.512], abs=0.05)
    assert correlation(steps[0][:, 0], steps[0][:, 1]) == pytest.approx(0.0, abs=0.08)


def test_a_new_episode_begins_with_new_noise_in_its_own_env_alone() -> None:
    noise = CorrelatedDraws(make_draws(), RHO, (1_000, 2))
    begun = np.arange(1_000) < 500
    before = noise.at(0)
    noise.begin_episodes(begun)
    after = noise.at(1_000)
    assert after[begun].std() == pytest.approx(1.0, abs=0.06)
    assert correlation(before[begun], after[begun]) == pytest.approx(0.0, abs=0.08)
    assert correlation(before[~begun], after[~begun]) == pytest.approx(RHO, abs=0.05)


def test_correlated_noise_continues_from_its_state() -> None:
    noise, copy = (CorrelatedDraws(make_draws(num_envs=3), RHO, (3, 2)) for _ in range(2))
    for step in range(5):
        noise.at(3 * step)
    noise.begin_episodes(np.array([False, True, False]))
    copy.load_state_dict(noise.state_dict())
    assert noise.at(15).tobytes() == copy.at(15).tobytes()


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_predicting_leaves_the_noise_of_training_alone(make_config: MakeConfig, algo: str) -> None:
    config = make_config(algo=algo, env_id="Pendulum-v1", algo_kwargs={"noise_correlation": RHO})
    envs = make_vector_env(config)
    make_learner: Any = get_algorithm_spec(algo).build_learner_fn
    obs = np.zeros((3, 3), np.float32)
    drawn = []
    for predicts in (False, True):
        learner = make_learner(config, envs.single_observation_space, envs.single_action_space)
        actor = learner.make_actor(range(3))
        if predicts:
            assert learner.policy.predict(obs, deterministic=False).shape == (3, 1)
        drawn.append(actor.act(obs, 2_000))
    assert np.array_equal(*drawn)


def test_correlation_is_for_continuous_actions(make_config: MakeConfig) -> None:
    config = make_config(algo_kwargs={"noise_correlation": 0.5})
    with pytest.raises(EnvironmentSetupError, match=r"noise_correlation=0.5 needs continuous actions, .*Discrete\(2\)"):
        build_ppo_learner(config, spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2))


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_correlation_lies_between_0_and_1(make_config: MakeConfig, value: float) -> None:
    with pytest.raises(ConfigError, match=f"algo_kwargs.noise_correlation={value}"):
        resolve_learner_params(PPOParams, make_config(algo_kwargs={"noise_correlation": value}))
