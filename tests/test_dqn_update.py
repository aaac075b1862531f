from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.base import Batch, GradientStep
from rl_training.algorithms.dqn import DQNLearner, DQNParams, huber_loss, q_targets
from rl_training.algorithms.optimizer import check_finite
from rl_training.cli import load_config
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sampling import PrioritizedSampler, UniformSampler
from rl_training.errors import NonFiniteUpdateError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import digest
from rl_training.experiment.sources import PRESETS_DIR
from rl_training.runtime.dqn_trainer import build_dqn_learner, resolve_dqn_params

OBSERVATIONS = spaces.Box(-1.0, 1.0, (2,))


def make_learner(num_actions: int = 2, **params: Any) -> DQNLearner:
    kwargs = {"batch_size": 8, "hidden_sizes": [16], "learning_starts": 10, "target_update_interval": 10, **params}
    config = TrainConfig(algo="dqn", env_id="none", total_timesteps=1000, device="cpu", algo_kwargs=kwargs)
    return build_dqn_learner(config, OBSERVATIONS, spaces.Discrete(num_actions))


def make_replay(learner: DQNLearner, count: int = 50, **options: Any) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    sampler = options.pop("sampler", UniformSampler(np.random.default_rng(1)))
    replay = ReplayBuffer(100, (2,), (), action_dtype=torch.int64, gamma=learner.params.gamma, sampler=sampler)
    for _ in range(count):
        replay.add(
            obs=rng.normal(size=2),
            actions=rng.integers(2),
            rewards=rng.normal(),
            next_obs=rng.normal(size=2),
            dones=rng.random() < 0.2,
        )
    return replay


def sampled(learner: DQNLearner, count: int) -> Batch:
    return learner.normalizer.prepare(make_replay(learner).sample(count), torch.device("cpu"))


def test_targets_by_hand_plain_and_double() -> None:
    batch = {"rewards": torch.tensor([1.0, 2.0]), "discounts": torch.tensor([0.5, 0.0])}
    target_values = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    online_values = torch.tensor([[5.0, 1.0], [1.0, 5.0]])
    assert q_targets(batch, target_values).tolist() == [11.0, 2.0]
    assert q_targets(batch, target_values, online_values).tolist() == [6.0, 2.0]


def test_the_loss_is_quadratic_up_to_1_and_linear_beyond() -> None:
    errors = torch.tensor([0.5, -1.0, 1.5, 3.0])
    loss, gradients = huber_loss(errors, torch.ones(4))
    assert loss.item() == pytest.approx((0.125 + 0.5 + 1.0 + 2.5) / 4)
    assert (4 * gradients).tolist() == [0.5, -1.0, 1.0, 1.0]
    loss, gradients = huber_loss(errors, torch.tensor([2.0, 0.0, 0.0, 0.0]))
    assert loss.item() == pytest.approx(2.0 * 0.125 / 4)
    assert (4 * gradients).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_target_stays_frozen_between_synchronisations() -> None:
    learner = make_learner(target_update_interval=10, learning_rate=0.01)
    replay, start = make_replay(learner), learner.policy.params.flat.clone()
    learner.update(replay, step=11, num_gradient_steps=1)  # crosses 10: synchronised after the update
    assert torch.equal(learner._target.flat, learner.policy.params.flat)
    frozen = learner._target.flat.clone()
    learner.update(replay, step=19, num_gradient_steps=5)
    assert torch.equal(learner._target.flat, frozen)
    assert not torch.equal(learner.policy.params.flat, frozen)
    learner.update(replay, step=20, num_gradient_steps=1)
    assert torch.equal(learner._target.flat, learner.policy.params.flat)
    assert not torch.equal(start, learner.policy.params.flat)


def test_polyak_takes_over_a_share_of_the_online_network() -> None:
    learner = make_learner(tau=0.25, target_update_interval=1)
    before = learner._target.flat.clone()
    learner.update(make_replay(learner), step=11, num_gradient_steps=1)
    torch.testing.assert_close(learner._target.flat, 0.75 * before + 0.25 * learner.policy.params.flat)


def test_epsilon_falls_linearly_over_its_share_of_the_budget() -> None:
    params = DQNParams(epsilon_start=1.0, epsilon_end=0.1, exploration_fraction=0.5)
    assert [params.epsilon(step, 1000) for step in (0, 250, 500, 1000)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert DQNParams(exploration_fraction=0.0).epsilon(0, 1000) == 0.05


def test_acting_explores_by_the_epsilon_of_its_step() -> None:
    """Epsilon falls from 1 to 0 over the budget: the last step is greedy, the middle one half random."""
    learner = make_learner(4, epsilon_start=1.0, epsilon_end=0.0, exploration_fraction=1.0)
    obs = np.zeros((4000, 2), np.float32)
    greedy = learner.policy.greedy(obs)
    actor = learner.make_actor(range(4000))
    shares = [float((actor.act(obs, step) == greedy).mean()) for step in (10, 500, 1000)]
    assert shares == pytest.approx([0.25 + 0.75 * 0.01, 0.5 + 0.5 * 0.25, 1.0], abs=0.03)


def test_actions_are_uniform_in_the_warm_up_and_explore_by_epsilon_after() -> None:
    learner = make_learner(4, epsilon_start=0.4, epsilon_end=0.4)
    obs = np.ones((20_000, 2), np.float32)
    best = int(learner.policy.greedy(obs)[0])
    actor = learner.make_actor(range(20_000))
    warm = np.bincount(actor.act(obs, step=9), minlength=4) / 20_000
    assert warm == pytest.approx([0.25] * 4, abs=0.02)
    later = np.bincount(actor.act(obs, step=10), minlength=4) / 20_000
    expected = [0.1] * 4
    expected[best] += 0.6
    assert later == pytest.approx(expected, abs=0.02)


def test_predictions_never_explore() -> None:
    learner = make_learner(4, epsilon_start=1.0, epsilon_end=1.0)
    obs = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    for deterministic in (True, False):
        assert np.array_equal(learner.policy.predict(obs, deterministic=deterministic), learner.policy.greedy(obs))


def test_dueling_values_are_the_state_value_plus_centred_advantages() -> None:
    network = make_learner(3, dueling=True).policy
    obs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    params = network.params.tensors()
    values = network.q_values(params, obs)
    assert network.value is not None
    torch.testing.assert_close(values.mean(dim=1), network.value.forward(params, obs).squeeze(1))
    advantages = network.advantage.forward(params, obs)
    torch.testing.assert_close(values - values.mean(1, keepdim=True), advantages - advantages.mean(1, keepdim=True))
    assert np.array_equal(network.greedy(obs.numpy()), values.argmax(dim=1).numpy())


@pytest.mark.parametrize("options", [{}, {"double": True}, {"dueling": True}], ids=str)
def test_a_two_state_problem_gets_its_known_values(options: dict[str, Any]) -> None:
    # State A: action 0 stays (reward 0), action 1 goes to B (reward 0). B: action 0 goes to A, action 1 ends with 1.
    # gamma 0.5: Q(B,1) = 1, Q(A,1) = 0.5, Q(A,0) = 0.25, Q(B,0) = 0.25.
    learner = make_learner(gamma=0.5, learning_rate=5e-3, batch_size=32, target_update_interval=20, **options)
    replay = ReplayBuffer(
        4, (2,), (), action_dtype=torch.int64, gamma=0.5, sampler=UniformSampler(np.random.default_rng(0))
    )
    a, b = [1.0, 0.0], [0.0, 1.0]
    replay.add(obs=a, actions=0, rewards=0.0, next_obs=a, dones=False)
    replay.add(obs=a, actions=1, rewards=0.0, next_obs=b, dones=False)
    replay.add(obs=b, actions=0, rewards=0.0, next_obs=a, dones=False)
    replay.add(obs=b, actions=1, rewards=1.0, next_obs=b, dones=True)
    for step in range(20, 800, 20):
        learner.update(replay, step, num_gradient_steps=20)
    values = learner.policy.q_values(learner.policy.params.tensors(), torch.tensor([a, b]))
    assert values.flatten().tolist() == pytest.approx([0.25, 0.5, 0.25, 1.0], abs=0.03)


def test_prioritised_replay_gets_the_errors_and_weights_the_loss() -> None:
    learner = make_learner(prioritized=True, priority_beta={"schedule": "linear", "start": 0.4, "end": 1.0})
    sampler = PrioritizedSampler(100, 0.6, np.random.default_rng(0))
    replay = make_replay(learner, sampler=sampler)
    before = sampler._tree.nodes.copy()
    learner.update(replay, step=500, num_gradient_steps=1)
    assert sampler.beta == pytest.approx(0.7)
    assert not np.array_equal(before, sampler._tree.nodes)


def test_the_gradient_is_clipped_and_reported() -> None:
    learner = make_learner(max_grad_norm=1e-4)
    metrics = learner.update(make_replay(learner), step=11, num_gradient_steps=1).metrics
    assert metrics["grad_norm"] > 1e-4
    assert torch.linalg.vector_norm(learner.state_dict()["optimizer"]["mean"]).item() == pytest.approx(1e-5, rel=1e-2)


def test_a_learner_goes_on_from_its_state_bit_for_bit() -> None:
    learner, copy = make_learner(), make_learner()
    replay = make_replay(learner)
    learner.update(replay, 15, 3)
    copy.load_state_dict(learner.state_dict())
    state = replay.sampler.state_dict()
    for one in (learner, copy):
        replay.sampler.load_state_dict(state)
        one.update(replay, 25, 3)
    assert torch.equal(learner.policy.params.flat, copy.policy.params.flat)
    assert torch.equal(learner._target.flat, copy._target.flat)
    obs = np.ones((50, 2), np.float32)
    actors = [one.make_actor(range(50)) for one in (learner, copy)]
    assert np.array_equal(actors[0].act(obs, 30), actors[1].act(obs, 30))


@pytest.mark.parametrize("preset", sorted((PRESETS_DIR / "dqn").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_presets_target_holds_still_for_many_gradient_steps(preset: Path) -> None:
    """A sync interval taken from burst training, where many updates follow one another, would be far too short here."""
    params = resolve_dqn_params(load_config(preset))
    env_steps_per_sync = max(params.target_update_interval, params.train_frequency)
    gradient_steps_per_sync = env_steps_per_sync / params.train_frequency * params.gradient_steps
    assert gradient_steps_per_sync / params.tau >= 200


@pytest.mark.parametrize("double", [False, True])
def test_the_next_action_is_chosen_by_the_network_that_the_option_says(double: bool) -> None:
    learner = make_learner(4, double=double)
    learner._target.set(learner._target.flat.flip(0))  # a target that prefers other actions
    batch = sampled(learner, 50)
    params = learner.policy.params
    target_values = learner.policy.q_values(learner._target.tensors(), batch["next_obs"])
    online_values = learner.policy.q_values(params.tensors(), batch["next_obs"])
    assert not torch.equal(target_values.argmax(1), online_values.argmax(1))
    targets = q_targets(batch, target_values, online_values if double else None)
    values = learner.policy.q_values(params.tensors(), batch["obs"]).gather(1, batch["actions"][:, None])[:, 0]
    applied = learner.apply(GradientStep("step", batch, {"learning_rate": 1e-3}))
    torch.testing.assert_close(applied.errors, values - targets)


def test_importance_weights_reach_the_loss() -> None:
    learner = make_learner()
    batch = sampled(learner, 8)
    batch["weights"] = torch.zeros(8)
    assert learner.apply(GradientStep("step", batch, {"learning_rate": 1e-3})).metrics[0] == 0.0


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    learner = make_learner()
    batch = sampled(learner, 8)
    batch["rewards"][3] = torch.nan
    before = digest(learner.state_dict())
    with pytest.raises(NonFiniteUpdateError, match=r"rewards\[3\] of its batch is nan"):
        learner.apply(GradientStep("step", batch, {"learning_rate": 1e-3}))
    assert digest(learner.state_dict()) == before


def test_a_finite_loss_with_another_gradient_is_refused_too() -> None:
    step = GradientStep("step", {}, {"learning_rate": 1.0})
    check_finite(1.0, 2.0, step)
    for loss, norm in ((1.0, torch.inf), (1.0, torch.nan), (torch.nan, 1.0), (torch.inf, -torch.inf)):
        with pytest.raises(NonFiniteUpdateError, match=r"so the weights have grown too large \(learning_rate 1\)"):
            check_finite(loss, norm, step)
