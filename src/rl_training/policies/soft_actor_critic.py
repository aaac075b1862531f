"""SAC's networks: a squashed Gaussian actor, and two critics that run as one batched network."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from rl_training.errors import EnvironmentSetupError
from rl_training.policies.base import Array
from rl_training.policies.distributions import BoundedActions
from rl_training.policies.encoders import Encoder
from rl_training.policies.flat import Shape
from rl_training.policies.host import HostedParams, pack_policy, unpack_policy
from rl_training.policies.mlp import MLP, NetworkSpec
from rl_training.policies.noise import ActingNoise, WhiteNoise

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
NUM_CRITICS = 2


def squash(means: Tensor, log_stds: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions tanh(mean + std * noise) [batch, dim] and their log-probs [batch].

    log(1 - tanh(u)^2) is written as 2 (log 2 - u - softplus(-2u)), which stays exact where tanh(u) rounds to 1.
    """
    unbounded = means + log_stds.exp() * noise
    gaussian = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    correction = 2.0 * (math.log(2.0) - unbounded - functional.softplus(-2.0 * unbounded))
    return torch.tanh(unbounded), (gaussian - correction).sum(dim=1)


class SquashedActor:
    """Acts in NumPy on the host, learns in torch on `device`; its space is -1 to 1, the env's its own bounds."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        network: NetworkSpec,
        noise: ActingNoise,
    ) -> None:
        scalable = isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating)
        if not (isinstance(action_space, spaces.Box) and scalable and action_space.is_bounded()):
            raise EnvironmentSetupError(
                f"action space {action_space} is not supported by sac; supported: Box of floats with finite bounds. "
                "Use ppo, or dqn for Discrete actions"
            )
        self.encoder = Encoder(observation_space, normalize=network.normalize_obs)
        self.actions = BoundedActions(action_space)
        self.action_shape: Shape = (self.actions.size,)
        self.action_dtype = torch.float32
        sizes = [self.encoder.size, *network.hidden_sizes, 2 * self.actions.size]
        self.network = MLP("actor", sizes, network.activation)
        self.params = HostedParams(self.network.shapes, network.device)
        self._noise = noise

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights from `generator`, which is on the CPU so that every device starts alike."""
        start = torch.zeros(self.params.layout.size)
        self.network.initialise_uniform(self.params.layout.tensors(start), generator)
        self.params.set(start)

    def act(self, obs: Array) -> Array:
        """Actions drawn for observations [env, ...], in -1 to 1."""
        return self._draw(obs, self._noise)

    def _draw(self, obs: Array, noise: ActingNoise) -> Array:
        outputs = self.network.forward_array(self.params.arrays, self.encoder.encode_array(obs))
        means, log_stds = np.split(outputs, 2, axis=1)
        stds = np.exp(np.clip(log_stds, LOG_STD_MIN, LOG_STD_MAX))
        drawn: Array = np.tanh(means + stds * noise.normal(means.shape))
        return drawn

    def begin_episodes(self, begun: Array) -> None:
        """Explore anew in the envs that `begun` [env] marks."""
        self._noise.begin_episodes(begun)

    def act_uniformly(self, count: int) -> Array:
        """Actions drawn uniformly from -1 to 1, for the warm-up."""
        return self._noise.stream.uniform(-1.0, 1.0, (count, self.actions.size)).astype(np.float32)

    def to_env(self, actions: Array) -> Array:
        """Scaled to the env's bounds."""
        return self.actions.to_env(actions)

    def predict(self, obs: Array, *, deterministic: bool = True) -> Array:
        """Env actions for observations [batch, ...]: the squashed means, or drawn."""
        if not deterministic:
            return self.to_env(self._draw(obs, WhiteNoise(self._noise.stream)))
        outputs = self.network.forward_array(self.params.arrays, self.encoder.encode_array(obs))
        return self.to_env(np.tanh(outputs[:, : self.actions.size]))

    def sample(self, params: Mapping[str, Tensor], features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and log-probs under `params`; gradients flow through the action."""
        means, log_stds = self.network.forward(params, features).chunk(2, dim=1)
        return squash(means, log_stds.clamp(LOG_STD_MIN, LOG_STD_MAX), noise)

    def state_dict(self) -> dict[str, Any]:
        """Named parameters, the stream that draws actions, and what its noise remembers."""
        return {**pack_policy(self.params, self.encoder, self._noise.stream), **self._noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the parameters, the stream and the noise of `state`."""
        unpack_policy(state, self.params, self.encoder, self._noise.stream)
        self._noise.load_state_dict(state)


class TwinCritics:
    """Q1 and Q2 of (features, action), one batched matrix product per layer for both."""

    def __init__(self, num_features: int, num_actions: int, network: NetworkSpec) -> None:
        self.sizes = [num_features + num_actions, *network.hidden_sizes, 1]
        self.activation = network.activation
        self.layers = [(f"critics.{index}.weight", f"critics.{index}.bias") for index in range(len(self.sizes) - 1)]
        shapes: dict[str, Shape] = {}
        for (weight, bias), inputs, outputs in zip(self.layers, self.sizes[:-1], self.sizes[1:], strict=True):
            shapes |= {weight: (NUM_CRITICS, inputs, outputs), bias: (NUM_CRITICS, 1, outputs)}
        self.params = HostedParams(shapes, network.device)

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights, different for the two critics."""
        start = torch.zeros(self.params.layout.size)
        tensors = self.params.layout.tensors(start)
        for (weight, bias), inputs in zip(self.layers, self.sizes[:-1], strict=True):
            limit = 1.0 / math.sqrt(inputs)
            tensors[weight].uniform_(-limit, limit, generator=generator)
            tensors[bias].uniform_(-limit, limit, generator=generator)
        self.params.set(start)

    def forward(self, params: Mapping[str, Tensor], features: Tensor, actions: Tensor) -> Tensor:
        """Values [critic, batch]."""
        activate = torch.tanh if self.activation == "tanh" else torch.relu
        hidden = torch.cat([features, actions], dim=1).expand(NUM_CRITICS, -1, -1)
        for weight, bias in self.layers[:-1]:
            hidden = activate(torch.baddbmm(params[bias], hidden, params[weight]))
        weight, bias = self.layers[-1]
        return torch.baddbmm(params[bias], hidden, params[weight]).squeeze(2)
