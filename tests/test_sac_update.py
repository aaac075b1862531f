import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.base import Batch, GradientStep
from rl_training.algorithms.sac import SACLearner, actor_loss, critic_loss, soft_targets
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sampling import UniformSampler
from rl_training.errors import NonFiniteUpdateError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import digest
from rl_training.policies.soft_actor_critic import SquashedDraw
from rl_training.runtime.sac_trainer import build_sac_learner

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))
ASYMMETRIC = spaces.Box(np.array([0.0, -3.0], np.float32), np.array([1.0, 10.0], np.float32))


def make_learner(**params: Any) -> SACLearner:
    kwargs = {"batch_size": 16, "hidden_sizes": [16, 16], "learning_starts": 10, **params}
    config = TrainConfig(algo="sac", env_id="none", total_timesteps=1000, device="cpu", algo_kwargs=kwargs)
    return build_sac_learner(config, OBSERVATIONS, ASYMMETRIC)


def make_replay(count: int = 50) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    replay = ReplayBuffer(100, (3,), (2,), gamma=0.99, sampler=UniformSampler(np.random.default_rng(1)))
    for _ in range(count):
        replay.add(
            obs=rng.normal(size=3),
            actions=rng.uniform(-1, 1, 2),
            rewards=rng.normal(),
            next_obs=rng.normal(size=3),
            dones=rng.random() < 0.2,
        )
    return replay


def sampled(learner: SACLearner) -> Batch:
    return learner.normalizer.prepare(make_replay().sample(16), torch.device("cpu"))


def test_the_squashed_log_prob_equals_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    means, log_stds, noise = (torch.randn(6, 2, generator=generator, dtype=torch.float64) for _ in range(3))
    draw = SquashedDraw(torch.cat([means, log_stds], dim=1), noise)
    normal: Any = torch.distributions.Normal(means, log_stds.exp())
    squashed: Any = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
    torch.testing.assert_close(draw.logprobs, squashed.log_prob(draw.actions).sum(1), atol=1e-6, rtol=1e-6)


def test_the_squashed_log_prob_is_finite_and_right_far_out() -> None:
    draw = SquashedDraw(torch.tensor([[20.0, 0.0]]), torch.tensor([[0.0]]))
    assert draw.actions.item() == 1.0
    # log N(0) - log(1 - tanh(20)^2), and 1 - tanh(u)^2 is 4 exp(-2u) that far out
    assert draw.logprobs.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - math.log(4.0) + 40.0, rel=1e-5)


def test_the_squashed_density_integrates_to_1() -> None:
    actions = torch.linspace(-1.0, 1.0, 40_001, dtype=torch.float64)[1:-1]
    mean, log_std = 0.3, -0.2
    noise = (torch.atanh(actions) - mean) / math.exp(log_std)
    outputs = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(len(actions), -1)
    logprobs = SquashedDraw(outputs, noise.unsqueeze(1)).logprobs
    assert (logprobs.exp().sum() * (2.0 / 40_000)).item() == pytest.approx(1.0, abs=1e-3)


def test_soft_targets_take_the_lower_critic_and_the_entropy_bonus() -> None:
    batch = {"rewards": torch.tensor([1.0, 1.0]), "discounts": torch.tensor([0.5, 0.0])}
    values, logprobs = torch.tensor([[4.0, 9.0], [2.0, 9.0]]), torch.tensor([-1.0, 5.0])
    assert soft_targets(batch, values, logprobs, torch.tensor(0.1)).tolist() == pytest.approx([1 + 0.5 * 2.1, 1.0])


def test_critic_and_actor_losses_by_hand() -> None:
    values = torch.tensor([[1.0, 3.0], [0.0, 2.0]])
    loss, gradients = critic_loss(values, torch.tensor([1.0, 1.0]))
    assert loss.item() == pytest.approx(0.5 * (4 / 2) + 0.5 * (2 / 2))
    assert gradients.tolist() == [[0.0, 1.0], [-0.5, 0.5]]
    loss, gradients = actor_loss(values, torch.tensor([2.0, 4.0]), torch.tensor(0.5))
    assert loss.item() == pytest.approx(((1.0 - 0.0) + (2.0 - 2.0)) / 2)
    assert gradients.tolist() == [[0.0, 0.0], [-0.5, -0.5]]


def test_the_critic_step_leaves_the_actor_alone_and_the_reverse() -> None:
    learner = make_learner()
    batch = sampled(learner)
    actor, critics = learner.policy.params.flat.clone(), learner.critics.params.flat.clone()
    learner._draw_and_apply("critic step", batch, 1e-3)
    assert torch.equal(learner.policy.params.flat, actor)
    assert not torch.equal(learner.critics.params.flat, critics)
    critics = learner.critics.params.flat.clone()
    learner._draw_and_apply("actor step", batch, 1e-3)
    assert not torch.equal(learner.policy.params.flat, actor)
    assert torch.equal(learner.critics.params.flat, critics)


def test_the_target_comes_from_target_critics_at_a_current_action() -> None:
    """With constant target critics the loss is known whatever the online critics and the stored action say."""
    learner = make_learner(alpha=0.5)
    batch = sampled(learner)
    learner._target.flat.zero_()
    constant = learner._target.tensors()
    constant["critics.2.bias"][0], constant["critics.2.bias"][1] = 7.0, 3.0
    twin = make_learner(alpha=0.5)
    noise = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    draw = twin.policy.draw(twin.policy.params.tensors(), batch["next_obs"], noise)
    targets = batch["rewards"] + batch["discounts"] * (3.0 - 0.5 * draw.logprobs)
    values = twin.critics.forward(twin.critics.params.tensors(), batch["obs"], batch["actions"])
    expected = critic_loss(values, targets)[0].item()
    step = GradientStep("critic step", {**batch, "noise": noise}, {"learning_rate": 1e-3, "alpha": 0.5})
    assert learner.apply(step)[0] == pytest.approx(expected, rel=1e-5)


def test_targets_follow_the_critics_by_tau() -> None:
    learner = make_learner(tau=0.25)
    before = learner._target.flat.clone()
    learner._draw_and_apply("critic step", sampled(learner), 1e-3)
    torch.testing.assert_close(learner._target.flat, 0.75 * before + 0.25 * learner.critics.params.flat)


def test_the_critics_differ_and_equal_two_separate_networks() -> None:
    learner = make_learner()
    params = learner.critics.params.tensors()
    obs, actions = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(5, 2)
    values = learner.critics.forward(params, obs, actions)
    assert values.shape == (2, 5)
    assert not torch.allclose(values[0], values[1])
    for critic in range(2):
        hidden = torch.cat([obs, actions], 1)
        for layer in range(3):
            hidden = hidden @ params[f"critics.{layer}.weight"][critic] + params[f"critics.{layer}.bias"][critic]
            hidden = torch.relu(hidden) if layer < 2 else hidden
        torch.testing.assert_close(values[critic], hidden.squeeze(1))


def test_the_target_entropy_is_minus_the_action_dimensions_unless_given() -> None:
    assert make_learner().target_entropy == -2
    assert make_learner(target_entropy=-0.5).target_entropy == -0.5


def test_a_temperature_of_single_precision_is_loaded() -> None:
    learner = make_learner()
    state = learner.state_dict()
    state |= {"log_alpha": torch.tensor([0.5]), "alpha_optimizer": {}}  # as older checkpoints have it
    learner.load_state_dict(state)
    assert learner.alpha == math.exp(0.5)


def test_a_temperature_that_has_run_away_is_refused_and_not_an_overflow() -> None:
    learner = make_learner()
    learner._log_alpha.value = 800.0
    with pytest.raises(NonFiniteUpdateError, match="critic step"):
        learner.update(make_replay(), step=20, num_gradient_steps=1)


@pytest.mark.parametrize(("target", "rises"), [(100.0, True), (-100.0, False)])
def test_the_temperature_rises_while_entropy_is_below_its_target(target: float, rises: bool) -> None:
    learner = make_learner(target_entropy=target)
    before = learner._log_alpha.value
    learner._draw_and_apply("actor step", sampled(learner), 1e-2)
    assert (learner._log_alpha.value > before) == rises


def test_a_fixed_temperature_stays() -> None:
    learner = make_learner(alpha=0.2)
    metrics = learner.update(make_replay(), step=20, num_gradient_steps=3).metrics
    assert metrics["ent_coef"] == pytest.approx(0.2)


def test_the_actor_waits_for_its_turn_and_then_makes_up_for_it() -> None:
    learner, replay = make_learner(policy_delay=3), make_replay()
    start = learner.policy.params.flat.clone()
    learner.update(replay, step=20, num_gradient_steps=2)
    assert torch.equal(learner.policy.params.flat, start)
    learner.update(replay, step=21, num_gradient_steps=1)
    assert learner.state_dict()["actor_optimizer"]["steps"].item() == 3.0
    assert learner.state_dict()["critic_optimizer"]["steps"].item() == 3.0


def test_warm_up_actions_are_uniform_over_the_policys_space() -> None:
    learner = make_learner()
    actor = learner.make_actor(range(20_000))
    actions = actor.act(np.zeros((20_000, 3), np.float32), step=9)
    assert actions.min() >= -1.0
    assert actions.max() <= 1.0
    assert actions.mean(axis=0) == pytest.approx([0.0, 0.0], abs=0.02)
    assert actions.std(axis=0) == pytest.approx([1 / math.sqrt(3)] * 2, abs=0.01)
    later = actor.act(np.zeros((20_000, 3), np.float32), step=10)
    assert later.std(axis=0) != pytest.approx([1 / math.sqrt(3)] * 2, abs=0.001)


def test_the_env_gets_actions_in_its_own_bounds() -> None:
    learner = make_learner()
    mapped = learner.policy.to_env(np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]], np.float32))
    assert mapped.tolist() == [[0.5, 3.5], [1.0, 10.0], [0.0, -3.0]]


def test_acting_and_learning_see_the_same_actor() -> None:
    learner = make_learner()
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    draw = learner.policy.draw(learner.policy.params.tensors(), torch.from_numpy(obs), torch.zeros(5, 2))
    assert learner.policy.predict(obs) == pytest.approx(learner.policy.to_env(draw.actions.numpy()), abs=1e-5)


def test_a_learner_goes_on_from_its_state_bit_for_bit() -> None:
    learner, copy, replay = make_learner(), make_learner(), make_replay()
    learner.update(replay, 15, 3)
    copy.load_state_dict(learner.state_dict())
    state = replay.sampler.state_dict()
    for one in (learner, copy):
        replay.sampler.load_state_dict(state)
        one.update(replay, 25, 3)
    for name in ("policy", "critics"):
        assert torch.equal(getattr(learner, name).params.flat, getattr(copy, name).params.flat)
    assert torch.equal(learner._target.flat, copy._target.flat)
    assert learner._log_alpha.value == copy._log_alpha.value
    obs = np.ones((5, 3), np.float32)
    actors = [one.make_actor(range(5)) for one in (learner, copy)]
    assert np.array_equal(actors[0].act(obs, 30), actors[1].act(obs, 30))


@pytest.mark.parametrize(("name", "field"), [("critic step", "rewards"), ("actor step", "obs")])
def test_a_step_that_is_not_finite_changes_nothing(name: str, field: str) -> None:
    learner = make_learner()
    batch = sampled(learner)
    batch[field][5] = torch.inf
    batch["noise"] = torch.zeros_like(batch["actions"])
    before = digest(learner.state_dict())
    with pytest.raises(NonFiniteUpdateError, match=rf"the {name} is rejected, .*{field}\[5.* of its batch is inf"):
        learner.apply(GradientStep(name, batch, {"learning_rate": 1e-3, "alpha": 1.0}))
    assert digest(learner.state_dict()) == before
