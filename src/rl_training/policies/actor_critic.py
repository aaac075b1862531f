"""An actor and a critic with separate networks, all parameters in one flat vector."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.policies.base import Array, PolicyOutput
from rl_training.policies.distributions import LOG_STD, build_distribution
from rl_training.policies.encoders import Encoder
from rl_training.policies.flat import FlatLayout
from rl_training.policies.mlp import MLP, Activation

ACTOR_GAIN, CRITIC_GAIN = 0.01, 1.0


class ActorCritic:
    """Acts in NumPy on the host, learns in torch on `device`; on the CPU both share one memory."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        hidden_sizes: Sequence[int],
        activation: Activation,
        device: torch.device,
        stream: np.random.Generator,
    ) -> None:
        self.encoder = Encoder(observation_space)
        self.distribution = build_distribution(action_space)
        self.actor = MLP("actor", [self.encoder.size, *hidden_sizes, self.distribution.num_outputs], activation)
        self.critic = MLP("critic", [self.encoder.size, *hidden_sizes, 1], activation)
        self.layout = FlatLayout({**self.actor.shapes, **self.critic.shapes, **self.distribution.shapes})
        self.flat = torch.zeros(self.layout.size, device=device)
        self._stream = stream  # draws actions
        self._host = self.flat if device.type == "cpu" else self.flat.cpu()
        self._arrays = self.layout.arrays(self._host.numpy())

    def initialise(self, generator: torch.Generator, log_std: float) -> None:
        """Random weights from `generator`, which is on the CPU so that every device starts alike."""
        start = torch.zeros(self.layout.size)
        params = self.layout.tensors(start)
        self.actor.initialise(params, ACTOR_GAIN, generator)
        self.critic.initialise(params, CRITIC_GAIN, generator)
        if LOG_STD in params:
            params[LOG_STD].fill_(log_std)
        self.flat.copy_(start)
        self.sync_host()

    def sync_host(self) -> None:
        """Let acting see the newest parameters; on the CPU it already does."""
        if self._host is not self.flat:
            self._host.copy_(self.flat)

    def act(self, obs: Array) -> Array:
        """Actions drawn for observations [env, ...], in the policy's own space."""
        outputs = self.actor.forward_array(self._arrays, self.encoder.encode_array(obs))
        return self.distribution.sample(self._arrays, outputs, self._stream)

    def to_env(self, actions: Array) -> Array:
        """What the env receives for `actions`."""
        return self.distribution.to_env(actions)

    def predict(self, obs: Array, *, deterministic: bool = True) -> Array:
        """Env actions for observations [batch, ...]: the likeliest, or drawn."""
        if not deterministic:
            return self.to_env(self.act(obs))
        outputs = self.actor.forward_array(self._arrays, self.encoder.encode_array(obs))
        return self.to_env(self.distribution.mode(outputs))

    def evaluate(self, params: Mapping[str, Tensor], obs: Tensor, actions: Tensor) -> PolicyOutput:
        """Score stored actions under `params`."""
        features = self.encoder.encode_tensor(obs)
        outputs = self.actor.forward(params, features)
        logprobs, entropy = self.distribution.score(params, outputs, actions)
        values = self.critic.forward(params, features).squeeze(1)
        return PolicyOutput(actions, logprobs, values, entropy)

    def values(self, params: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """State values [batch] under `params`."""
        return self.critic.forward(params, self.encoder.encode_tensor(obs)).squeeze(1)

    def state_dict(self) -> dict[str, Any]:
        """Named parameters, and the stream that draws actions."""
        params = {name: param.detach().cpu().clone() for name, param in self.layout.tensors(self.flat).items()}
        return {"params": params, "acting_stream": self._stream.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the parameters and the stream of `state`."""
        with torch.no_grad():
            for name, param in self.layout.tensors(self.flat).items():
                param.copy_(state["params"][name])
        self._stream.bit_generator.state = state["acting_stream"]
        self.sync_host()
