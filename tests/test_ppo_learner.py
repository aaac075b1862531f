from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sample_learners import build_ppo_learner
from torch import Tensor

from rl_training.algorithms.base import GradientStep
from rl_training.algorithms.optimizer import Adam, AppliedStep
from rl_training.algorithms.ppo import LOSS_METRICS, PPOLearner
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.policies.distributions import LOG_STD
from rl_training.runtime.on_policy import build_rollout
from rl_training.streams import make_stream

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))
DISCRETE: spaces.Space[Any] = spaces.Discrete(3)
CONTINUOUS: spaces.Space[Any] = spaces.Box(-2.0, 2.0, (2,))
BOTH_KINDS = pytest.mark.parametrize("action_space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])

STEPS, ENVS = 8, 4


def make_learner(
    action_space: spaces.Space[Any] = DISCRETE, seed: int = 1, **params: Any
) -> tuple[PPOLearner, RolloutBuffer]:
    kwargs = {"num_steps": STEPS, "minibatch_size": 8, "update_epochs": 3, "hidden_sizes": [16], **params}
    values = {"env_id": "none", "seed": seed, "num_envs": ENVS, "total_timesteps": 1000, "device": "cpu"}
    config = TrainConfig(algo="ppo", algo_kwargs=kwargs, **values)
    learner = build_ppo_learner(config, OBSERVATIONS, action_space)
    return learner, build_rollout(config, learner)


def fill(learner: PPOLearner, rollout: RolloutBuffer) -> None:
    """A rollout of random transitions; env 0 is truncated at step 2, env 1 terminates at step 4."""
    rng = np.random.default_rng(0)
    rollout.reset()
    actor = learner.make_actor(range(ENVS))
    while not rollout.full:
        step = rollout.position
        obs = rng.normal(size=(ENVS, 3)).astype(np.float32)
        truncated = np.array([step == 2, False, False, False])
        terminated = np.array([False, step == 4, False, False])
        rollout.add(
            obs=obs,
            actions=actor.act(obs, step * ENVS),
            rewards=rng.normal(size=ENVS),
            dones=truncated | terminated,
            truncated=truncated,
            last_obs=np.full((ENVS, 3), 0.3, np.float32),
        )
    learner.compute_advantages(rollout, np.full((ENVS, 3), -0.2, np.float32))


@BOTH_KINDS
def test_the_first_minibatch_has_ratio_1(action_space: spaces.Space[Any]) -> None:
    learner, rollout = make_learner(action_space, minibatch_size=STEPS * ENVS, update_epochs=1)
    fill(learner, rollout)
    metrics = learner.update(rollout, step=0).metrics
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    # With ratio 1 and normalised advantages the surrogate is their mean, 0.
    assert metrics["policy_gradient_loss"] == pytest.approx(0.0, abs=1e-6)


def test_advantages_stay_as_they_are_when_not_normalised() -> None:
    learner, rollout = make_learner(normalize_advantages=False, minibatch_size=STEPS * ENVS, update_epochs=1)
    fill(learner, rollout)
    mean = rollout.advantages.mean().item()
    assert abs(mean) > 0.01
    assert learner.update(rollout, step=0).metrics["policy_gradient_loss"] == pytest.approx(-mean, abs=1e-6)


def test_bootstraps_come_from_the_values_of_the_true_last_observations() -> None:
    learner, rollout = make_learner(gamma=0.5, gae_lambda=0.0)
    fill(learner, rollout)
    params = learner.policy.params.tensors
    after_limit = learner.policy.values(params, torch.full((1, 3), 0.3)).item()
    after_rollout = learner.policy.values(params, torch.full((1, 3), -0.2)).item()
    # With lambda 0 the return is reward + gamma * V(next).
    rewards, values = rollout.rewards, rollout.values
    assert rollout.returns[2, 0].item() == pytest.approx(rewards[2, 0].item() + 0.5 * after_limit, abs=1e-5)
    assert rollout.returns[4, 1].item() == pytest.approx(rewards[4, 1].item(), abs=1e-5)
    assert rollout.returns[-1, 2].item() == pytest.approx(rewards[-1, 2].item() + 0.5 * after_rollout, abs=1e-5)
    assert rollout.returns[0, 3].item() == pytest.approx((rewards[0, 3] + 0.5 * values[1, 3]).item(), abs=1e-5)


def test_a_rollout_gets_the_values_of_its_observations() -> None:
    learner, rollout = make_learner()
    fill(learner, rollout)
    params = learner.policy.params.tensors
    values = learner.policy.values(params, rollout.obs.flatten(0, 1))
    assert values.abs().max() > 0.1
    torch.testing.assert_close(rollout.values.flatten(), values)


def plain_update(
    learner: PPOLearner, rollout: RolloutBuffer, activate: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Three epochs in plain torch: parameters apart, torch's own distributions, clipping and Adam."""
    policy = learner.policy
    params = {name: param.clone().requires_grad_() for name, param in policy.params.tensors.items()}
    optimizer = torch.optim.Adam(params.values(), lr=0.02, eps=1e-5)
    obs, actions = rollout.obs.flatten(0, 1), rollout.actions.flatten(0, 1)
    advantages, returns = rollout.advantages.flatten(), rollout.returns.flatten()

    def network(name: str) -> Tensor:
        hidden = activate(obs @ params[f"{name}.0.weight"].T + params[f"{name}.0.bias"])
        return hidden @ params[f"{name}.1.weight"].T + params[f"{name}.1.bias"]

    def distribution() -> Any:
        outputs: Any = network("actor")
        if LOG_STD not in params:
            return torch.distributions.Categorical(logits=outputs)
        return torch.distributions.Independent(torch.distributions.Normal(outputs, params[LOG_STD].exp()), 1)

    old_logprobs, old_values = distribution().log_prob(actions).detach(), network("critic").squeeze(1).detach()
    stream = make_stream(1, "minibatches")
    for _ in range(3):
        for index in torch.from_numpy(stream.permutation(STEPS * ENVS)).view(-1, 8):
            ratios = (distribution().log_prob(actions) - old_logprobs)[index].exp()
            scaled = (advantages[index] - advantages[index].mean()) / (advantages[index].std() + 1e-8)
            surrogates = torch.min(ratios * scaled, ratios.clamp(0.85, 1.15) * scaled)
            values = network("critic").squeeze(1)
            limited = old_values + (values - old_values).clamp(-0.1, 0.1)
            errors = torch.max((values - returns).square(), (limited - returns).square())[index]
            loss = -surrogates.mean() + 0.25 * errors.mean() - 0.01 * distribution().entropy()[index].mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params.values(), 0.5)
            optimizer.step()
    return params


@pytest.mark.parametrize(("action_space", "activation"), [(DISCRETE, "tanh"), (CONTINUOUS, "relu")])
def test_an_update_ends_with_the_weights_of_plain_torch(action_space: spaces.Space[Any], activation: str) -> None:
    learner, rollout = make_learner(
        action_space,
        activation=activation,
        learning_rate={"schedule": "linear", "start": 0.04},
        clip_coef={"schedule": "linear", "start": 0.3},
        clip_vf_coef=0.1,
        ent_coef=0.01,
    )
    fill(learner, rollout)
    expected = plain_update(learner, rollout, torch.tanh if activation == "tanh" else torch.relu)
    metrics = learner.update(rollout, step=500).metrics  # of 1000: a rate of 0.02, a clip range of 0.15
    assert metrics["clip_fraction"] > 0.0
    assert metrics["grad_norm"] > 0.5
    updated = learner.policy.params.tensors
    for name, param in updated.items():
        torch.testing.assert_close(param, expected[name].detach(), atol=1e-5, rtol=1e-5)


def test_an_update_takes_epochs_times_minibatches_gradient_steps() -> None:
    learner, rollout = make_learner(minibatch_size=10)
    fill(learner, rollout)
    assert learner.update(rollout, step=0).num_gradient_steps == 3 * 4  # 32 transitions: 10, 10, 10 and 2


def test_kl_early_stop_skips_all_that_remains_and_counts_what_was_done() -> None:
    learner, rollout = make_learner(learning_rate=0.05, target_kl=0.01)
    fill(learner, rollout)
    steps: list[float] = []
    original = learner._optimizer.apply

    def counting(step: GradientStep) -> AppliedStep:
        applied = original(step)
        steps.append(applied.metrics[LOSS_METRICS.index("approx_kl")])
        return applied

    learner._optimizer.apply = counting  # type: ignore[method-assign]  # counts the real steps
    num_gradient_steps = learner.update(rollout, step=0).num_gradient_steps
    assert num_gradient_steps == len(steps) < 12
    assert steps[-1] > 0.015
    assert all(kl <= 0.015 for kl in steps[:-1])


def test_annealing_reaches_optimizer_and_clip_range() -> None:
    linear = {"schedule": "linear", "start": 0.4}
    learner, rollout = make_learner(learning_rate=linear, clip_coef=linear)
    for step, expected in ((0, 0.4), (500, 0.2), (1000, 0.0)):
        fill(learner, rollout)
        before = learner.policy.params.flat.clone()
        metrics = learner.update(rollout, step).metrics
        assert metrics["learning_rate"] == metrics["clip_range"] == pytest.approx(expected)
        assert torch.equal(before, learner.policy.params.flat) == (expected == 0.0)


def test_adam_runs_with_the_small_epsilon_and_the_clipped_gradient() -> None:
    learner, rollout = make_learner(max_grad_norm=1e-3, update_epochs=1, minibatch_size=STEPS * ENVS)
    fill(learner, rollout)
    metrics = learner.update(rollout, step=0).metrics
    assert metrics["grad_norm"] > 1e-3
    # After one step the first moment is a tenth of the gradient that Adam saw.
    assert torch.linalg.vector_norm(learner.state_dict()["optimizer"]["mean"]).item() == pytest.approx(1e-4, rel=1e-2)
    assert learner._optimizer.rule == Adam(eps=1e-5)


def test_the_buffer_keeps_the_unclipped_continuous_action() -> None:
    learner, rollout = make_learner(CONTINUOUS, log_std_init=2.0)
    assert learner.policy.state_dict()["params"][LOG_STD].tolist() == [2.0, 2.0]
    fill(learner, rollout)
    assert rollout.actions.abs().max() > 1.0  # the policy's bounds are -1 and 1
    assert np.abs(learner.policy.to_env(rollout.actions.flatten(0, 1).numpy())).max() == 2.0


@BOTH_KINDS
def test_a_learner_goes_on_from_its_state_bit_for_bit(action_space: spaces.Space[Any]) -> None:
    learner, rollout = make_learner(action_space)
    copy, _ = make_learner(action_space)
    fill(learner, rollout)
    learner.update(rollout, step=0)
    copy.load_state_dict(learner.state_dict())
    for one in (learner, copy):
        fill(one, rollout)
        one.update(rollout, step=32)
    assert torch.equal(learner.policy.params.flat, copy.policy.params.flat)


def test_a_saved_state_does_not_change_with_the_learner() -> None:
    learner, rollout = make_learner()
    fill(learner, rollout)
    learner.update(rollout, step=0)
    saved = learner.state_dict()
    weights, stream = saved["policy"]["params"]["actor.0.weight"], saved["minibatch_stream"]
    moments = saved["optimizer"]["mean"]
    kept = deepcopy((weights, moments, stream))
    learner.update(rollout, step=32)
    assert torch.equal(weights, kept[0])
    assert torch.equal(moments, kept[1])
    assert stream == kept[2] != learner.state_dict()["minibatch_stream"]


def test_weights_and_minibatch_order_follow_the_seed_each_by_a_stream_of_its_own() -> None:
    learner, rollout = make_learner()
    start, other = learner.state_dict(), make_learner(seed=2)[0].state_dict()
    assert not torch.equal(start["policy"]["params"]["actor.0.weight"], other["policy"]["params"]["actor.0.weight"])
    assert start["minibatch_stream"] != other["minibatch_stream"]
    fill(learner, rollout)
    acted = learner.state_dict()
    assert acted["minibatch_stream"] == start["minibatch_stream"]
    learner.update(rollout, step=0)
    assert learner.state_dict()["minibatch_stream"] != acted["minibatch_stream"]


@pytest.mark.parametrize("size", [1, 31])
def test_a_minibatch_of_one_keeps_the_weights_finite(size: int) -> None:
    learner, rollout = make_learner(minibatch_size=size)  # 31 leaves a last minibatch of 1
    fill(learner, rollout)
    learner.update(rollout, step=0)
    assert torch.isfinite(learner.policy.params.flat).all()
