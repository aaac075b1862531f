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
from rl_training.policies.acting import draw_rows
from rl_training.policies.base import Array, Streams
from rl_training.policies.distributions import BoundedActions
from rl_training.policies.features import Encoder
from rl_training.policies.networks.protocol import Shape, Trace
from rl_training.policies.networks.spec import Head, NetworkSpec
from rl_training.policies.params import make_trained_params, pack_policy, unpack_policy
from rl_training.streams import make_stream

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
NUM_CRITICS = 2


class SquashedDraw:
    """Actions tanh(mean + std * noise) [batch, dim] and their log-probs [batch], from outputs [batch, 2 dim]."""

    def __init__(self, outputs: Tensor, noise: Tensor) -> None:
        means, self._raw_log_stds = outputs.chunk(2, dim=1)
        log_stds = self._raw_log_stds.clamp(LOG_STD_MIN, LOG_STD_MAX)
        self._spread = log_stds.exp() * noise
        unbounded = means + self._spread
        self.actions = torch.tanh(unbounded)
        gaussian = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(u)^2) in a form that stays exact where tanh(u) rounds to 1.
        correction = 2.0 * (math.log(2.0) - unbounded - functional.softplus(-2.0 * unbounded))
        self.logprobs = (gaussian - correction).sum(dim=1)

    def backward(self, action_gradients: Tensor, logprob_gradient: float | Tensor) -> Tensor:
        """Compute the gradients of a loss for the outputs from those for the actions [batch, dim] and each log-prob.

        With u = mean + std * noise: d action / d u = 1 - action^2, and d log-prob / d u = 2 action.
        """
        means = action_gradients * (1.0 - self.actions.square()) + logprob_gradient * (2.0 * self.actions)
        inside = (self._raw_log_stds >= LOG_STD_MIN) & (self._raw_log_stds <= LOG_STD_MAX)
        return torch.cat([means, (means * self._spread - logprob_gradient) * inside], dim=1)


class SquashedActor:
    """Acts in NumPy on the host, learns in torch on `device`; actions from -1 to 1 are scaled to the env's bounds."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        network: NetworkSpec,
        seed: int,
    ) -> None:
        scalable = isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating)
        if not (isinstance(action_space, spaces.Box) and scalable and action_space.is_bounded()):
            raise EnvironmentSetupError(
                f"action space {action_space} is not supported by sac; supported: Box of floats with finite bounds. "
                "Use ppo, or dqn for Discrete actions"
            )
        self.encoder = Encoder(observation_space, normalize=network.normalize_obs)
        self.actions = BoundedActions(action_space)
        self.to_env = self.actions.to_env
        self.action_shape: Shape = (self.actions.size,)
        self.action_dtype = torch.float32
        self.network = network.build(self.encoder, Head("actor", 2 * self.actions.size, network.actor_hidden_sizes))
        self.params = make_trained_params(self.network.shapes, network.device)
        self.action_parts, self.acting_network = (self.actions.part(squash=True),), self.network
        self._stream = make_stream(seed, "predictions")

    def initialise(self, generator: torch.Generator) -> None:
        """Write random weights."""
        self.params.initialise((self.network,), generator)

    def sample(self, obs: Array, noise: Array) -> Array:
        """Return actions for observations [batch, ...] and normal noise [batch, dim], between -1 and 1."""
        outputs = self.network.forward_array(self.params.arrays, self.encoder.encode_array(obs))
        means, log_stds = np.split(outputs, 2, axis=1)
        stds = np.exp(np.clip(log_stds, LOG_STD_MIN, LOG_STD_MAX))
        drawn: Array = np.tanh(means + stds * noise)
        return drawn

    def predict(self, obs: Array, *, deterministic: bool = True, streams: Streams | None = None) -> Array:
        """Return env actions for observations [batch, ...]: the squashed means, or drawn ones."""
        if not deterministic:
            noise = draw_rows((("normal", self.actions.size),), len(obs), streams or self._stream)
            return self.to_env(self.sample(obs, noise))
        outputs = self.network.forward_array(self.params.arrays, self.encoder.encode_array(obs))
        return self.to_env(np.tanh(outputs[:, : self.actions.size]))

    def draw(self, params: Mapping[str, Tensor], features: Tensor, noise: Tensor) -> SquashedDraw:
        """Draw actions with their log-probs under `params`."""
        return SquashedDraw(self.network.forward(params, features), noise)

    def state_dict(self) -> dict[str, Any]:
        """Return the named parameters and the normalisation of observations."""
        return pack_policy(self.params, self.encoder)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the parameters and the normalisation of `state`."""
        unpack_policy(state, self.params, self.encoder)


class TwinCritics:
    """The critics Q1 and Q2, functions of features and actions."""

    def __init__(self, encoder: Encoder, num_actions: int, network: NetworkSpec) -> None:
        self._action_columns = slice(encoder.size, encoder.size + num_actions)
        head = Head("critics", 1, network.critic_hidden_sizes)
        self.network = network.build_stack(encoder, head, NUM_CRITICS, num_actions=num_actions)
        self.params = make_trained_params(self.network.shapes, network.device)

    def initialise(self, generator: torch.Generator) -> None:
        """Write random weights, different ones for the two critics."""
        self.params.initialise((self.network,), generator)

    def forward(self, params: Mapping[str, Tensor], features: Tensor, actions: Tensor) -> Tensor:
        """Compute values [critic, batch]."""
        return self.network.forward(params, torch.cat([features, actions], dim=1)).squeeze(2)

    def trace(self, params: Mapping[str, Tensor], features: Tensor, actions: Tensor) -> Trace:
        """Compute values [critic, batch, 1], and keep what `gradients` or `action_gradients` needs."""
        return self.network.trace(params, torch.cat([features, actions], dim=1))

    def gradients(self, params: Mapping[str, Tensor], trace: Trace, outer: Tensor) -> dict[str, Tensor]:
        """Compute the gradients of a loss for all parameters from `outer`, those for the values [critic, batch]."""
        return self.network.backward(params, trace, outer.unsqueeze(2))

    def action_gradients(self, params: Mapping[str, Tensor], trace: Trace, outer: Tensor) -> Tensor:
        """Compute the gradients of a loss for the actions [batch, dim] from those for the values [critic, batch]."""
        return self.network.input_gradients(params, trace, outer.unsqueeze(2), self._action_columns)
