from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeConfig
from gymnasium import spaces

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.policies.features import Encoder, FeatureNormalizer, RewardNormalizer, RunningMoments
from rl_training.runtime.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.runtime.workflows import evaluate_checkpoint, load_agent

ALGORITHMS = pytest.mark.parametrize("algo", [spec.name for spec in list_algorithm_specs()])


def test_merged_moments_equal_those_of_all_data_at_once() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, size=(size, 4)) for size in (1, 7, 100, 2)]
    moments = RunningMoments((4,))
    for batch in batches:
        moments.update(batch)
    together = np.concatenate(batches)
    assert moments.count == 110
    assert moments.mean == pytest.approx(together.mean(axis=0))
    assert moments.variance == pytest.approx(together.var(axis=0))


def test_features_are_normalised_alike_in_numpy_and_torch_and_clipped() -> None:
    normalizer = FeatureNormalizer(2, enabled=True)
    normalizer.update(np.array([[0.0, 10.0], [2.0, 30.0]], np.float32))  # means 1, 20; deviations 1, 10
    normalizer.refresh()
    features = np.array([[1.0, 20.0], [3.0, 0.0], [1000.0, -1000.0]], np.float32)
    expected = [[0.0, 0.0], [2.0, -2.0], [10.0, -10.0]]
    assert normalizer.apply_array(features).tolist() == pytest.approx(np.array(expected), abs=1e-5)
    assert normalizer.apply_tensor(torch.from_numpy(features)).numpy() == pytest.approx(np.array(expected), abs=1e-5)


def test_new_statistics_apply_from_the_next_refresh_on_also_after_a_reload() -> None:
    normalizer, reloaded = FeatureNormalizer(1, enabled=True), FeatureNormalizer(1, enabled=True)
    seen = np.array([[4.0]], np.float32)
    before = normalizer.apply_array(seen)
    normalizer.update(np.array([[0.0], [4.0]], np.float32))  # mean 2, deviation 2
    reloaded.load_state_dict(normalizer.state_dict())
    for each in (normalizer, reloaded):
        assert each.apply_array(seen) == before
        each.refresh()
        assert each.apply_array(seen) == pytest.approx(1.0)


def test_switched_off_everything_passes_through() -> None:
    encoder = Encoder(spaces.Box(-9.0, 9.0, (2,)))
    encoder.observe(np.full((5, 2), 100.0, np.float32))
    assert encoder.encode_array(np.array([[3.0, 4.0]], np.float32)).tolist() == [[3.0, 4.0]]
    rewards = RewardNormalizer(0.9, enabled=False)
    rewards.update(np.full((5, 2), 100.0), np.zeros((5, 2), np.bool_))
    assert rewards.apply(torch.tensor([3.0])).tolist() == [3.0]


def test_reward_scale_is_the_deviation_of_the_discounted_return_which_restarts_with_the_episode() -> None:
    rewards = np.array([[1.0], [1.0], [1.0]])
    ended = np.array([[False], [True], [False]])
    normalizer = RewardNormalizer(0.5, enabled=True)
    normalizer.update(rewards, ended)
    deviation = np.std([1.0, 1.5, 1.0])  # 1, then 0.5 + 1, then anew
    assert normalizer.apply(torch.tensor([1.0])).item() == pytest.approx(1.0 / deviation, rel=1e-4)
    in_pieces = RewardNormalizer(0.5, enabled=True)
    for step in range(3):
        in_pieces.update(rewards[step : step + 1], ended[step : step + 1])
    assert in_pieces.apply(torch.tensor([1.0])).item() == pytest.approx(1.0 / deviation, rel=1e-4)


def test_rewards_are_clipped_at_ten_deviations() -> None:
    normalizer = RewardNormalizer(0.0, enabled=True)
    normalizer.update(np.array([[1.0], [-1.0]]), np.zeros((2, 1), np.bool_))
    assert normalizer.apply(torch.tensor([5.0, 1000.0, -1000.0])).tolist() == pytest.approx([5.0, 10.0, -10.0])


NORMALISED = {"normalize_obs": True, "normalize_rewards": True}


@ALGORITHMS
def test_a_normalised_agent_keeps_its_statistics_and_frozen_they_do_not_move(
    make_config: MakeConfig, algo: str
) -> None:
    result = get_algorithm_spec(algo).train_fn(make_config(algo=algo, algo_kwargs=NORMALISED))
    saved = load_checkpoint(result.checkpoint_path).algorithm_state
    assert saved["policy"]["normalizer"]["count"] > 100
    assert saved["rewards"]["moments"]["count"] > 100
    agent: Any = load_agent(result.checkpoint_path)
    before = agent.learner.policy.encoder.normalizer.moments.count
    agent.learner.policy.predict(np.zeros((3, *agent.observation_space.shape), np.float32))
    assert agent.learner.policy.encoder.normalizer.moments.count == before == saved["policy"]["normalizer"]["count"]
    repeated = evaluate_checkpoint(result.checkpoint_path, num_episodes=2)
    assert repeated["eval_return_mean"] == result.metrics["eval_return_mean"]  # the same statistics, raw returns


@ALGORITHMS
def test_evaluation_does_not_move_the_statistics(make_config: MakeConfig, algo: str) -> None:
    states = [
        load_checkpoint(
            get_algorithm_spec(algo)
            .train_fn(make_config(algo=algo, eval_episodes=episodes, algo_kwargs=NORMALISED))
            .checkpoint_path
        ).algorithm_state["policy"]
        for episodes in (0, 3)
    ]
    assert torch.equal(states[0]["normalizer"]["mean"], states[1]["normalizer"]["mean"])
    assert all(torch.equal(states[0]["params"][name], value) for name, value in states[1]["params"].items())


def test_ppo_normalises_the_last_observations_as_all_others(make_config: MakeConfig) -> None:
    """With values read off one feature, a truncated step's bootstrap shows which statistics were used."""
    from sample_learners import build_ppo_learner

    from rl_training.runtime.on_policy import build_rollout

    config = make_config(num_envs=1, algo_kwargs={**NORMALISED, "num_steps": 1, "minibatch_size": 1, "gamma": 0.5})
    learner = build_ppo_learner(config, spaces.Box(-99.0, 99.0, (1,)), spaces.Discrete(2))
    learner.policy.encoder.observe(np.array([[0.0], [20.0]], np.float32))  # mean 10, deviation 10
    learner.policy.encoder.refresh()
    rollout = build_rollout(config, learner)
    rollout.add(
        obs=[[10.0]], actions=[0], rewards=[0.0], dones=[True], truncated=np.array([True]), last_obs=np.array([[30.0]])
    )
    learner.compute_advantages(rollout, np.array([[0.0]], np.float32))
    expected = learner.policy.values(learner.policy.params.tensors, torch.tensor([[2.0]])).item()
    assert rollout.bootstrap_values.item() == pytest.approx(expected, abs=1e-5)


def test_ppo_learns_from_a_rollout_with_the_statistics_it_was_collected_with(make_config: MakeConfig) -> None:
    """The first pass over a rollout sees the very log-probs that acting had, so no probability has moved yet."""
    from sample_learners import build_ppo_learner

    from rl_training.runtime.on_policy import build_rollout

    kwargs = {**NORMALISED, "num_steps": 8, "minibatch_size": 8, "update_epochs": 1}
    config = make_config(num_envs=1, algo_kwargs=kwargs)
    learner = build_ppo_learner(config, spaces.Box(-99.0, 99.0, (1,)), spaces.Discrete(2))
    learner.policy.encoder.observe(np.array([[-1.0], [1.0]], np.float32))
    learner.policy.encoder.refresh()
    rollout = build_rollout(config, learner)
    actor = learner.make_actor(range(1))
    for step in range(8):
        obs = np.array([[5.0 * step]], np.float32)  # far from what the statistics have seen
        rollout.add(obs=obs, actions=actor.act(obs, step), rewards=[float(step)], dones=[False])
    learner.compute_advantages(rollout, np.array([[40.0]], np.float32))
    metrics = learner.update(rollout, 0).metrics
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["policy_gradient_loss"] == pytest.approx(0.0, abs=1e-6)  # the mean of normalised advantages
    assert learner.policy.encoder.normalizer.moments.count == 10  # and then they move
