"""An actor and a critic, with networks of their own or behind a shared trunk, all parameters in one flat vector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.errors import EnvironmentSetupError
from rl_training.policies.acting import draw_rows
from rl_training.policies.base import Array, PolicyOutput, Streams
from rl_training.policies.distributions import LOG_STD, Scores, build_distribution
from rl_training.policies.features import Encoder
from rl_training.policies.networks.protocol import Trace
from rl_training.policies.networks.spec import Head, NetworkSpec
from rl_training.policies.params import make_trained_params, pack_policy, unpack_policy
from rl_training.streams import make_stream, make_torch_generator

ACTOR_GAIN, CRITIC_GAIN = 0.01, 1.0


class OutputGradients(NamedTuple):
    """Gradients of a loss with respect to a policy's output."""

    logprobs: Tensor  # [batch]
    values: Tensor  # [batch]
    entropy: float  # the same for every transition


class Evaluation(NamedTuple):
    """The policy's output for stored actions, and what is needed to differentiate it."""

    output: PolicyOutput
    actor: Trace
    critic: Trace | None
    scores: Scores


class ActorCritic:
    """Acts in NumPy on the host, learns in torch on `device`."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        network: NetworkSpec,
        seed: int,
        *,
        log_std: float = 0.0,
    ) -> None:
        """`log_std` is the initial log standard deviation of continuous actions."""
        self.encoder = Encoder(observation_space, normalize=network.normalize_obs)
        self.distribution = build_distribution(action_space)
        self.to_env = self.distribution.to_env
        self._masked = self._can_use_masks(action_space)
        actor = Head("actor", self.distribution.num_outputs, network.actor_hidden_sizes, ACTOR_GAIN)
        critic = Head("critic", 1, network.critic_hidden_sizes, CRITIC_GAIN)
        self.actor, self.critic = network.build_pair(self.encoder, actor, critic)
        """With a shared trunk, there is one network: the last column of the actor's outputs is the value."""
        shapes = {**self.actor.shapes, **(self.critic.shapes if self.critic else {}), **self.distribution.shapes}
        self.params = make_trained_params(shapes, network.device)
        self.action_shape, self.action_dtype = self.distribution.action_shape, self.distribution.action_dtype
        self.action_parts, self.acting_network = self.distribution.parts, self.actor
        self._stream = make_stream(seed, "predictions")
        self.params.initialise((self.actor, self.critic), make_torch_generator(seed, "initialisation"))
        if LOG_STD in self.params.tensors:
            self.params.tensors[LOG_STD].fill_(log_std)
            self.params.sync_host()

    def _can_use_masks(self, action_space: spaces.Space[Any]) -> bool:
        """Return whether observations have masks that the distribution can use; refuse masks of another size."""
        given, expected = self.encoder.mask_size, self.distribution.mask_size
        if given and expected and given != expected:
            raise EnvironmentSetupError(
                f"the action mask has {given} entries, but the action space {action_space} has {expected} choices: "
                f"the env must give a mask of {expected} entries, one per choice"
            )
        return bool(given and expected)

    def masks(self, obs: Tensor) -> Tensor | None:
        """Return which choices are legal in stored observations [batch, ...]; none if the policy uses no masks."""
        return self.encoder.masks_tensor(obs) if self._masked else None

    def _forward_array(self, obs: Array) -> tuple[Array, Array | None]:
        """Return the actor's outputs for observations [batch, ...], and which choices are legal."""
        outputs = self.actor.forward_array(self.params.arrays, self.encoder.encode_array(obs))
        masks = self.encoder.masks_array(obs) if self._masked else None
        return outputs if self.critic else outputs[:, :-1], masks

    def sample(self, obs: Array, noise: Array) -> Array:
        """Return actions for observations [batch, ...] and noise [batch, size], in the policy's own space."""
        outputs, masks = self._forward_array(obs)
        return self.distribution.sample(self.params.arrays, outputs, noise, masks)

    def predict(self, obs: Array, *, deterministic: bool = True, streams: Streams | None = None) -> Array:
        """Return env actions for observations [batch, ...]: the likeliest ones, or drawn ones."""
        if not deterministic:
            noise = draw_rows(self.distribution.noise, len(obs), streams or self._stream)
            return self.to_env(self.sample(obs, noise))
        return self.to_env(self.distribution.mode(*self._forward_array(obs)))

    def evaluate(
        self, params: Mapping[str, Tensor], features: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> Evaluation:
        """Score stored actions under `params`, and keep what `gradients` needs.

        `masks` come from the same observations as the features.
        """
        actor = self.actor.trace(params, features)
        critic = self.critic.trace(params, features) if self.critic else None
        outputs, values = _columns(actor.outputs, critic.outputs if critic else None)
        scores = self.distribution.score(params, outputs, actions, masks)
        output = PolicyOutput(actions, scores.logprobs, values, scores.entropies)
        return Evaluation(output, actor, critic, scores)

    def score(
        self, params: Mapping[str, Tensor], features: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> PolicyOutput:
        """Score stored actions with the same results as `evaluate`, to the last bit, but keep nothing for gradients."""
        critic = self.critic.forward(params, features) if self.critic else None
        outputs, values = _columns(self.actor.forward(params, features), critic)
        scores = self.distribution.score(params, outputs, actions, masks)
        return PolicyOutput(actions, scores.logprobs, values, scores.entropies)

    def gradients(
        self, params: Mapping[str, Tensor], evaluation: Evaluation, outer: OutputGradients
    ) -> dict[str, Tensor]:
        """Compute the gradients of a loss for all parameters from `outer`, those for the output of the evaluation."""
        outputs, gradients = evaluation.scores.backward(outer.logprobs, outer.entropy)
        values = outer.values.unsqueeze(1)
        if self.critic is None or evaluation.critic is None:
            return gradients | self.actor.backward(params, evaluation.actor, torch.cat([outputs, values], dim=1))
        gradients |= self.actor.backward(params, evaluation.actor, outputs)
        return gradients | self.critic.backward(params, evaluation.critic, values)

    def values(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Compute state values [batch] under `params`."""
        return (self.critic or self.actor).forward(params, features)[:, -1]

    def state_dict(self) -> dict[str, Any]:
        """Return the named parameters and the normalisation of observations."""
        return pack_policy(self.params, self.encoder)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the parameters and the normalisation of `state`."""
        unpack_policy(state, self.params, self.encoder)


def _columns(actor: Tensor, critic: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the outputs for the distribution and the values [batch], which come from one network or from two."""
    if critic is None:
        return actor[:, :-1], actor[:, -1]
    return actor, critic.squeeze(1)
