"""The gradients that the learners work out by hand, against automatic differentiation of losses written here anew."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sample_learners import build_dqn_learner, build_ppo_learner, build_sac_learner
from torch import Tensor
from torch.nn import functional

from rl_training.algorithms.base import Batch, GradientStep, LossGradients, Networks, Settings
from rl_training.algorithms.optimizer import Adam, Optimizer, flatten_gradients
from rl_training.experiment.config import TrainConfig
from rl_training.policies.params import HostedParams

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))
BOX = spaces.Box(-2.0, 2.0, (2,))
SIZE = 40
LOG_STD_LIMITS = (-20.0, 2.0)

Params = dict[str, Tensor]


def config(algo: str, **params: Any) -> TrainConfig:
    kwargs = {"hidden_sizes": [40, 6], **params}  # products with many columns and with few
    return TrainConfig(algo=algo, env_id="none", total_timesteps=1000, device="cpu", num_envs=64, algo_kwargs=kwargs)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(params: Params, name: str, features: Tensor, activation: str) -> Tensor:
    for layer in range(3):
        features = functional.linear(features, params[f"{name}.{layer}.weight"], params[f"{name}.{layer}.bias"])
        if layer < 2:
            features = torch.tanh(features) if activation == "tanh" else torch.relu(features)
    return features


def twin_critics(params: Params, obs: Tensor, actions: Tensor) -> Tensor:
    values = []
    for critic in range(2):
        hidden = torch.cat([obs, actions], dim=1)
        for layer in range(3):
            weight, bias = params[f"critics.{layer}.weight"][critic], params[f"critics.{layer}.bias"][critic]
            hidden = hidden @ weight + bias
            hidden = torch.relu(hidden) if layer < 2 else hidden
        values.append(hidden.squeeze(1))
    return torch.stack(values)


def check(gradients: Mapping[str, Tensor], params: HostedParams, loss: Callable[[Params], Tensor]) -> None:
    """Compare with what torch derives from `loss` of the named parameters."""
    flat = params.flat.double().requires_grad_()
    (expected,) = torch.autograd.grad(loss(params.layout.tensors(flat)), flat)
    assert expected.abs().max() > 1e-3
    gradient = flatten_gradients(params.layout, gradients)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5)


def doubled(named: Params) -> Params:
    """The same numbers with a longer tail, so that the reference does not round."""
    return {name: value.double() if value.is_floating_point() else value for name, value in named.items()}


@pytest.mark.parametrize("action_space", [spaces.Discrete(3), BOX], ids=["discrete", "box"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"activation": "relu", "ent_coef": 0.05},
        {"clip_vf_coef": 0.1, "vf_coef": 0.7, "normalize_advantages": False},
    ],
    ids=str,
)
def test_the_gradient_of_ppo(action_space: spaces.Space[Any], params: dict[str, Any]) -> None:
    learner = build_ppo_learner(config("ppo", **params), OBSERVATIONS, action_space)
    policy, settings = learner.policy, learner.params
    policy.params.set(policy.params.flat + 0.3 * normal(policy.params.layout.size, seed=0))
    discrete = isinstance(action_space, spaces.Discrete)
    actions = torch.arange(SIZE) % 3 if discrete else normal(SIZE, 2, seed=1)
    obs, advantages, returns = normal(SIZE, 3, seed=2), normal(SIZE, seed=3), normal(SIZE, seed=4)
    batch: Batch = {"obs": obs, "actions": actions, "advantages": advantages, "returns": returns}

    def evaluate(named: Params) -> tuple[Tensor, Tensor, Tensor]:
        outputs = mlp(named, "actor", obs, settings.activation)
        values = mlp(named, "critic", obs, settings.activation).squeeze(1)
        if discrete:
            categorical: Any = torch.distributions.Categorical(logits=outputs)
            return categorical.log_prob(actions), categorical.entropy(), values
        gaussian: Any = torch.distributions.Normal(outputs, named["log_std"].exp())
        return gaussian.log_prob(actions).sum(1), gaussian.entropy().sum(1), values

    obs, advantages, returns = obs.double(), advantages.double(), returns.double()
    logprobs, _, values = evaluate(doubled(policy.params.tensors))
    # Old ones around the new, so that some transitions are clipped on either side.
    batch["logprobs"] = logprobs.float() + 0.3 * normal(SIZE, seed=5)
    batch["values"] = values.float() + 0.2 * normal(SIZE, seed=6)

    def loss(named: Params) -> Tensor:
        logprobs, entropies, values = evaluate(named)
        scaled = advantages
        if settings.normalize_advantages:
            scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratios = (logprobs - batch["logprobs"]).exp()
        surrogate = torch.min(ratios * scaled, ratios.clamp(0.8, 1.2) * scaled).mean()
        errors = (values - returns).square()
        if settings.clip_vf_coef is not None:
            moved = (values - batch["values"]).clamp(-settings.clip_vf_coef, settings.clip_vf_coef)
            errors = torch.max(errors, (batch["values"] + moved - returns).square())
        return -surrogate + settings.vf_coef * 0.5 * errors.mean() - settings.ent_coef * entropies.mean()

    found = learner._gradients({"policy": policy.params.tensors}, batch, {"clip_coef": 0.2})
    assert found.metrics[0].item() == pytest.approx(loss(doubled(policy.params.tensors)).item(), abs=1e-5)
    assert 0.1 < found.metrics[5].item() < 0.9  # of the transitions are clipped
    check(found.gradients, policy.params, loss)


@pytest.mark.parametrize("params", [{}, {"double": True}, {"dueling": True, "activation": "tanh"}], ids=str)
def test_the_gradient_of_dqn(params: dict[str, Any]) -> None:
    learner = build_dqn_learner(config("dqn", **params), OBSERVATIONS, spaces.Discrete(4))
    network, settings = learner.policy, learner.params
    learner._target.set(learner._target.flat + 0.3 * normal(learner._target.layout.size, seed=0))
    batch: Batch = {"obs": normal(SIZE, 3, seed=1), "next_obs": normal(SIZE, 3, seed=2)}
    batch |= {"actions": torch.arange(SIZE) % 4, "rewards": 2.0 * normal(SIZE, seed=3)}
    batch |= {"discounts": 0.9 * (torch.arange(SIZE) % 5 > 0), "weights": torch.linspace(0.1, 1.0, SIZE)}
    exact, target = doubled(batch), doubled(learner._target.tensors)

    def q_values(named: Params, obs: Tensor) -> Tensor:
        advantages = mlp(named, "advantage", obs, settings.activation)
        if not settings.dueling:
            return advantages
        value = mlp(named, "value", obs, settings.activation)
        return value + advantages - advantages.mean(dim=1, keepdim=True)

    def loss(named: Params) -> Tensor:
        following = q_values(target, exact["next_obs"])
        choosing = q_values(named, exact["next_obs"]).detach() if settings.double else following
        best = following[torch.arange(SIZE), choosing.argmax(dim=1)]
        targets = exact["rewards"] + exact["discounts"] * best
        values = q_values(named, exact["obs"])[torch.arange(SIZE), batch["actions"]]
        return (exact["weights"] * functional.huber_loss(values, targets, reduction="none")).mean()

    networks = {"online": network.params.tensors, "target": learner._target.tensors}
    found = learner._gradients(networks, batch, {})
    assert found.metrics[0].item() == pytest.approx(loss(doubled(network.params.tensors)).item(), rel=1e-5)
    check(found.gradients, network.params, loss)


@pytest.mark.parametrize("step", ["critics", "actor"])
def test_the_gradients_of_sac(step: str) -> None:
    learner = build_sac_learner(config("sac"), OBSERVATIONS, BOX)
    policy, critics = learner.policy, learner.critics
    policy.params.set(policy.params.flat + 1.5 * normal(policy.params.layout.size, seed=0))  # some deviations are cut
    learner._target.set(learner._target.flat + 0.1 * normal(learner._target.layout.size, seed=1))
    batch: Batch = {"obs": normal(SIZE, 3, seed=2), "next_obs": normal(SIZE, 3, seed=3)}
    batch |= {"actions": normal(SIZE, 2, seed=4).tanh(), "rewards": normal(SIZE, seed=5)}
    batch |= {"discounts": torch.full((SIZE,), 0.9), "noise": normal(SIZE, 2, seed=6)}
    exact = doubled(batch)

    def draw(named: Params, obs: Tensor) -> tuple[Tensor, Tensor]:
        means, log_stds = mlp(named, "actor", obs, "relu").chunk(2, dim=1)
        gaussian: Any = torch.distributions.Normal(means, log_stds.clamp(*LOG_STD_LIMITS).exp())
        unbounded = means + gaussian.stddev * exact["noise"]
        squashing: Any = torch.distributions.TanhTransform()
        log_determinants = squashing.log_abs_det_jacobian(unbounded, torch.tanh(unbounded))
        return torch.tanh(unbounded), (gaussian.log_prob(unbounded) - log_determinants).sum(dim=1)

    def critic_loss(named: Params) -> Tensor:
        actions, logprobs = draw(doubled(policy.params.tensors), exact["next_obs"])
        following = twin_critics(doubled(learner._target.tensors), exact["next_obs"], actions).amin(dim=0)
        targets = exact["rewards"] + exact["discounts"] * (following - 0.3 * logprobs)
        return 0.5 * (twin_critics(named, exact["obs"], exact["actions"]) - targets).square().mean(dim=1).sum()

    def actor_loss(named: Params) -> Tensor:
        actions, logprobs = draw(named, exact["obs"])
        values = twin_critics(doubled(critics.params.tensors), exact["obs"], actions)
        return (0.3 * logprobs - values.amin(dim=0)).mean()

    networks = {"actor": policy.params, "critics": critics.params, "target": learner._target}
    tensors = {name: params.tensors for name, params in networks.items()}
    if step == "critics":
        check(learner._critic_gradients(tensors, batch, {"alpha": 0.3}).gradients, critics.params, critic_loss)
    else:
        outputs = policy.network.forward(policy.params.tensors, batch["obs"])
        assert 0 < (outputs[:, 2:] > LOG_STD_LIMITS[1]).sum() < outputs[:, 2:].numel()
        check(learner._actor_gradients(tensors, batch, {"alpha": 0.3}).gradients, policy.params, actor_loss)


def test_a_network_acts_and_learns_through_the_same_function() -> None:
    learner = build_ppo_learner(config("ppo"), OBSERVATIONS, spaces.Discrete(3))
    obs = normal(SIZE, 3, seed=0)
    acting = learner.policy.actor.forward_array(learner.policy.params.arrays, obs.numpy())
    learning = learner.policy.actor.forward(learner.policy.params.tensors, obs)
    np.testing.assert_allclose(acting, learning.numpy(), rtol=1e-5, atol=1e-7)


def test_gradients_may_come_from_automatic_differentiation() -> None:
    params = HostedParams({"weights": (16,)}, torch.device("cpu"))

    def compute(networks: Networks, batch: Batch, _: Settings) -> LossGradients:
        def loss(named: Params) -> Tensor:
            return (named["weights"] - batch["actions"]).square().sum()

        gradients, value = torch.func.grad_and_value(loss)(dict(networks["net"]))
        return LossGradients(gradients, value.reshape(1))

    step = GradientStep("step", {"actions": torch.ones(16)}, {"learning_rate": 0.1})
    assert Optimizer({"net": params}, compute, Adam()).apply(step).metrics == [16.0, 8.0]  # the norm of 16 times -2
    assert params.flat.tolist() == pytest.approx([0.1] * 16)
