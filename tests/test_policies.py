import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.policies.acting import draw
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.distributions import LOG_STD, Categorical, DiagonalGaussian
from rl_training.policies.features import Encoder
from rl_training.policies.networks.mlp import MLP, FastActivation, activate, affine
from rl_training.policies.networks.spec import NetworkSpec
from rl_training.policies.params import FlatLayout

ASYMMETRIC = spaces.Box(np.array([0.0, -3.0], np.float32), np.array([1.0, 10.0], np.float32))


def make_policy(action_space: spaces.Space[Any], observation_space: spaces.Space[Any] | None = None) -> ActorCritic:
    return ActorCritic(
        observation_space or spaces.Box(-1.0, 1.0, (3,)),
        action_space,
        NetworkSpec((16, 8), "tanh", torch.device("cpu")),
        seed=1,
        log_std=-0.5,
    )


def test_categorical_scores_as_torch_does() -> None:
    outputs, actions = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0, 1])
    scores = Categorical(spaces.Discrete(4)).score({}, outputs, actions)
    reference: Any = torch.distributions.Categorical(logits=outputs)
    torch.testing.assert_close(scores.logprobs, reference.log_prob(actions))
    torch.testing.assert_close(scores.entropies, reference.entropy())


def test_gaussian_scores_as_torch_does_summed_over_dimensions() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, actions = torch.randn(5, 2, generator=generator), 3.0 * torch.randn(5, 2, generator=generator)
    log_std = torch.tensor([-0.3, 0.8])
    scores = DiagonalGaussian(ASYMMETRIC).score({LOG_STD: log_std}, outputs, actions)
    reference: Any = torch.distributions.Normal(outputs, log_std.exp())
    torch.testing.assert_close(scores.logprobs, reference.log_prob(actions).sum(1))
    torch.testing.assert_close(scores.entropies, reference.entropy().sum(1))


def test_the_likeliest_action_is_the_highest_logit_or_the_mean() -> None:
    outputs = np.array([[0.1, 2.0, -1.0], [0.3, 0.2, 0.1]], np.float32)
    assert Categorical(spaces.Discrete(3)).mode(outputs).tolist() == [1, 0]
    assert DiagonalGaussian(ASYMMETRIC).mode(outputs[:, :2]).tolist() == outputs[:, :2].tolist()


def test_categorical_draws_with_the_probabilities_of_its_logits() -> None:
    outputs = np.log(np.tile(np.array([[0.7, 0.2, 0.1]], np.float32), (20_000, 1)))
    noise = draw("gumbel", (20_000, 3), np.random.default_rng(0))
    drawn = Categorical(spaces.Discrete(3)).sample({}, outputs, noise)
    assert np.bincount(drawn) / 20_000 == pytest.approx([0.7, 0.2, 0.1], abs=0.015)


def test_gaussian_draws_unclipped_with_its_mean_and_deviation() -> None:
    outputs = np.tile(np.array([[0.5, -2.0]], np.float32), (20_000, 1))
    params = {LOG_STD: np.log(np.array([0.5, 2.0], np.float32))}
    noise = draw("normal", (20_000, 2), np.random.default_rng(0))
    drawn = DiagonalGaussian(ASYMMETRIC).sample(params, outputs, noise)
    assert drawn.mean(axis=0) == pytest.approx([0.5, -2.0], abs=0.05)
    assert drawn.std(axis=0) == pytest.approx([0.5, 2.0], abs=0.05)
    assert np.abs(drawn).max() > 5.0


def test_the_policy_space_maps_onto_asymmetric_bounds_and_is_clipped_there() -> None:
    gaussian = DiagonalGaussian(ASYMMETRIC)
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [-9.0, 9.0]], np.float32)
    assert gaussian.to_env(actions).tolist() == [[0.0, -3.0], [0.5, 3.5], [1.0, 10.0], [0.0, 10.0]]


def test_unbounded_actions_pass_unchanged_in_the_shape_of_the_env() -> None:
    gaussian = DiagonalGaussian(spaces.Box(-np.inf, np.inf, (2, 2), np.float64))
    actions = np.array([[1.0, -20.0, 300.0, 0.0]], np.float32)
    env_actions = gaussian.to_env(actions)
    assert env_actions.dtype == np.float64
    assert env_actions.tolist() == [[[1.0, -20.0], [300.0, 0.0]]]


def test_discrete_actions_count_from_the_start_of_the_space() -> None:
    policy = make_policy(spaces.Discrete(3, start=5))
    drawn = policy.predict(np.zeros((50, 3), np.float32), deterministic=False)
    assert set(drawn.tolist()) <= {5, 6, 7}


def test_acting_and_learning_see_the_same_network() -> None:
    policy = make_policy(ASYMMETRIC)
    obs = np.random.default_rng(2).normal(size=(7, 3)).astype(np.float32)
    params = policy.params.tensors
    means = policy.actor.forward(params, torch.from_numpy(obs)).numpy()
    assert policy.predict(obs) == pytest.approx(policy.to_env(means), abs=1e-5)
    with torch.no_grad():
        policy.params.flat.mul_(2.0)  # what an update does: acting must see it without a copy
    doubled = policy.actor.forward(policy.params.tensors, torch.from_numpy(obs)).numpy()
    assert policy.predict(obs) == pytest.approx(policy.to_env(doubled), abs=1e-5)


@pytest.mark.parametrize(
    ("activation", "outputs"),
    [
        ("relu", [3.25, 6.25]),  # hidden (1.5, 0) and (0, 2)
        ("tanh", [2 * math.tanh(1.5) + 3 * math.tanh(-1) + 0.25, 2 * math.tanh(-1.5) + 3 * math.tanh(2) + 0.25]),
    ],
)
def test_a_network_by_hand_in_torch_and_numpy(activation: FastActivation, outputs: list[float]) -> None:
    network = MLP("net", [1, 2, 1], activation)
    params = {
        "net.0.weight": torch.tensor([[1.0], [-1.0]]),
        "net.0.bias": torch.tensor([0.5, 0.0]),
        "net.1.weight": torch.tensor([[2.0, 3.0]]),
        "net.1.bias": torch.tensor([0.25]),
    }
    features = torch.tensor([[1.0], [-2.0]])
    assert network.forward(params, features).flatten().tolist() == pytest.approx(outputs)
    arrays = {name: param.numpy() for name, param in params.items()}
    assert network.forward_array(arrays, features.numpy()).flatten().tolist() == pytest.approx(outputs)


@pytest.mark.parametrize("compiling", [False, True])
def test_layers_are_the_same_maths_however_they_are_written(
    monkeypatch: pytest.MonkeyPatch, *, compiling: bool
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 5, 3, generator=generator)
    weights, biases = torch.randn(2, 3, 4, generator=generator), torch.randn(2, 1, 4, generator=generator)
    expected = inputs.double() @ weights.double() + biases.double()
    torch.testing.assert_close(affine(inputs, weights, biases).double(), expected, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(affine(inputs[0], weights[0], biases[0, 0]).double(), expected[0], rtol=0.0, atol=1e-6)
    values = torch.linspace(-100.0, 100.0, 20_001)
    torch.testing.assert_close(activate("tanh", values.clone()).double(), values.double().tanh(), rtol=0.0, atol=3e-7)


def test_initial_gains_are_sqrt_2_hidden_a_hundredth_actor_and_1_critic() -> None:
    policy = make_policy(spaces.Discrete(4))
    params = policy.params.tensors
    gains = {"actor.0": 2**0.5, "actor.1": 2**0.5, "actor.2": 0.01, "critic.1": 2**0.5, "critic.2": 1.0}
    for layer, gain in gains.items():
        singular = torch.linalg.svdvals(params[f"{layer}.weight"])
        torch.testing.assert_close(singular, torch.full_like(singular, gain), atol=1e-4, rtol=0.0)
        assert not params[f"{layer}.bias"].any()


def test_every_parameter_starts_on_a_64_byte_boundary_and_gradients_reach_it() -> None:
    layout = FlatLayout({"a": (3,), "b": (2, 5), "c": ()})
    flat = torch.arange(layout.size, dtype=torch.float32).requires_grad_()
    views = layout.tensors(flat)
    assert [view.data_ptr() % 64 for view in views.values()] == [0, 0, 0]
    (gradient,) = torch.autograd.grad(2.0 * views["b"].sum() + views["c"], flat)
    assert gradient.nonzero().flatten().tolist() == [*range(16, 26), 32]
    arrays = layout.arrays(flat.detach().numpy())
    assert all(np.array_equal(arrays[name], view.detach().numpy()) for name, view in views.items())


@pytest.mark.parametrize(
    ("space", "obs", "features"),
    [
        (spaces.Box(-1.0, 1.0, (2, 2)), [[[1.0, 2.0], [3.0, 4.0]]], [[1.0, 2.0, 3.0, 4.0]]),
        (spaces.Box(0, 255, (2,), np.uint8), [[0, 51]], [[0.0, 0.2]]),
        (spaces.Box(0, 1, (2,), np.uint8), [[0, 1]], [[0.0, 1.0]]),
        (spaces.Box(-5.0, 5.0, ()), [0.5, -1.5], [[0.5], [-1.5]]),
        (spaces.Discrete(3), [2, 0], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
        (spaces.Discrete(3, start=4), [5], [[0.0, 1.0, 0.0]]),
    ],
)
def test_observations_become_the_same_flat_features_in_numpy_and_torch(
    space: spaces.Space[Any], obs: list[Any], features: list[list[float]]
) -> None:
    encoder = Encoder(space)
    array = np.array(obs, dtype=space.dtype)
    encoded = encoder.encode_array(array)
    assert encoded.dtype == np.float32
    assert encoded == pytest.approx(np.array(features, np.float32))
    stored = torch.from_numpy(array).to(encoder.storage_dtype)
    assert encoder.encode_tensor(stored).tolist() == encoded.tolist()


def test_a_policy_survives_a_round_trip() -> None:
    policy, copy = make_policy(spaces.Discrete(4)), make_policy(spaces.Discrete(4))
    obs = np.random.default_rng(3).normal(size=(20, 3)).astype(np.float32)
    noise = draw("gumbel", (20, 4), np.random.default_rng(0))
    with torch.no_grad():
        policy.params.flat.mul_(1.1)
    copy.load_state_dict(policy.state_dict())
    assert np.array_equal(policy.sample(obs, noise), copy.sample(obs, noise))
    assert torch.equal(policy.params.flat, copy.params.flat)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bounds_too_wide_to_scale_count_as_none(dtype: type) -> None:
    widest = float(np.finfo(dtype).max)
    gaussian = DiagonalGaussian(spaces.Box(-widest, widest, (1,), dtype))
    expected = 0.5 if dtype is np.float32 else 0.5 * widest  # float16's range is one that can be scaled
    assert gaussian.to_env(np.array([[0.5], [0.0]], np.float32)).ravel().tolist() == pytest.approx([expected, 0.0])


def test_parameters_of_other_shapes_are_refused_instead_of_broadcast() -> None:
    policy = make_policy(spaces.Discrete(4))
    state = policy.state_dict()
    state["params"]["actor.0.weight"] = state["params"]["actor.0.weight"][:, :1]
    with pytest.raises(ValueError, match="do not fit"):
        policy.load_state_dict(state)
