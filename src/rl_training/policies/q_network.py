"""Action values for discrete actions, plain or dueling, and the greedy policy over them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.errors import EnvironmentSetupError
from rl_training.policies.base import Array, Streams
from rl_training.policies.distributions import ILLEGAL, Categorical
from rl_training.policies.features import Encoder
from rl_training.policies.networks.protocol import FloatArray, Network, Trace
from rl_training.policies.networks.spec import Head, NetworkSpec
from rl_training.policies.params import make_trained_params


class QTrace(NamedTuple):
    """Values [batch, action], and what is needed to differentiate them."""

    values: Tensor
    advantage: Trace
    value: Trace | None


class QNetwork:
    """Q(obs, action) of every action; dueling: V + A - mean A (Wang et al. 2016).

    Advantages and state values come from two networks, or behind a shared trunk from one, with V in the last column.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        network: NetworkSpec,
        *,
        dueling: bool,
    ) -> None:
        if not isinstance(action_space, spaces.Discrete):
            raise EnvironmentSetupError(
                f"action space {type(action_space).__name__} is not supported by dqn; supported: Discrete. "
                "Use ppo, or sac for continuous actions"
            )
        self.encoder = Encoder(observation_space, normalize=network.normalize_obs)
        actions = Categorical(action_space)
        self.num_actions, self.to_env = actions.num_outputs, actions.to_env
        self.action_shape, self.action_dtype = actions.action_shape, actions.action_dtype
        self._dueling = dueling
        advantage = Head("advantage", self.num_actions)
        self.value: Network | None = None
        if dueling:
            self.advantage, self.value = network.build_pair(self.encoder, advantage, Head("value", 1))
        else:
            self.advantage = network.build(self.encoder, advantage)
        shapes = {**self.advantage.shapes, **(self.value.shapes if self.value else {})}
        self.params = make_trained_params(shapes, network.device)
        # Advantages are enough to act: the value of the state adds the same number to the values of all actions.
        self.action_parts, self.acting_network = actions.parts, self.advantage

    def initialise(self, generator: torch.Generator) -> None:
        """Write random weights."""
        self.params.initialise((self.advantage, self.value), generator)

    def q_values(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Compute values [batch, action] under `params`."""
        advantage = self.advantage.forward(params, features)
        return self._combine(advantage, self.value.forward(params, features) if self.value else None)

    def _combine(self, advantage: Tensor, value: Tensor | None) -> Tensor:
        """Compute the values of actions from the outputs of one network or of two."""
        if not self._dueling:
            return advantage
        advantages = advantage[:, : self.num_actions]
        values = advantage[:, self.num_actions :] if value is None else value
        return values + advantages - advantages.mean(dim=1, keepdim=True)

    def trace(self, params: Mapping[str, Tensor], features: Tensor) -> QTrace:
        """Compute the values, and keep what `gradients` needs."""
        advantage = self.advantage.trace(params, features)
        value = self.value.trace(params, features) if self.value else None
        return QTrace(self._combine(advantage.outputs, value.outputs if value else None), advantage, value)

    def gradients(self, params: Mapping[str, Tensor], trace: QTrace, outer: Tensor) -> dict[str, Tensor]:
        """Compute the gradients of a loss for all parameters from `outer`, those for the values [batch, action]."""
        if not self._dueling:
            return self.advantage.backward(params, trace.advantage, outer)
        total = outer.sum(dim=1, keepdim=True)
        advantages = outer - total / self.num_actions
        if self.value is None or trace.value is None:
            return self.advantage.backward(params, trace.advantage, torch.cat([advantages, total], dim=1))
        gradients = self.value.backward(params, trace.value, total)
        return gradients | self.advantage.backward(params, trace.advantage, advantages)

    def greedy(self, obs: Array) -> Array:
        """Return the best action per row, counted from 0; the value of the state does not matter here."""
        features: FloatArray = self.encoder.encode_array(obs)
        values = self.advantage.forward_array(self.params.arrays, features)[:, : self.num_actions]
        masks = self.encoder.masks_array(obs)
        best: Array = (values if masks is None else np.where(masks, values, ILLEGAL)).argmax(axis=1)
        return best

    def choose(self, obs: Array, choices: Array) -> Array:
        """Return a legal action per row, chosen by a number in [0, 1); uniform numbers choose uniformly."""
        masks = self.encoder.masks_array(obs)
        if masks is None:
            chosen: Array = (choices * self.num_actions).astype(np.int64)
            return chosen
        ranks = (choices * masks.sum(axis=1)).astype(np.int64)
        legal: Array = (masks.cumsum(axis=1) > ranks[:, None]).argmax(axis=1)
        return legal

    def predict(self, obs: Array, *, deterministic: bool = True, streams: Streams | None = None) -> Array:
        """Return greedy env actions in both modes, because only actors explore."""
        del deterministic, streams
        return self.to_env(self.greedy(obs))
