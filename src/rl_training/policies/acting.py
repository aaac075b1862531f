"""Acting while experience is collected: the policy's actions for some of the envs of a run, with noise to explore."""

from typing import Any, Protocol

import numpy as np

from rl_training.policies.base import Array
from rl_training.policies.draws import Draws


class Actor(Protocol):
    """Chooses the actions of some of the envs, with the newest parameters of a policy.

    What it draws depends on the run's seed, the env's index and the step alone.
    """

    def act(self, obs: Array, step: int) -> Array:
        """Return actions for observations [env, ...] at env step `step`, in the policy's own space."""

    def to_env(self, actions: Array) -> Array:
        """Return what the envs receive for actions in the policy's own space."""

    def begin_episodes(self, begun: Array) -> None:
        """Note that the next step of the envs that `begun` [env] marks is the first of an episode."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the next actions depend on beside parameters, observations and the step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an empty one is that of a new run."""


class Noise(Protocol):
    """Random numbers [env, size] for every step."""

    def at(self, step: int) -> Array:
        """Return the numbers for env step `step`."""

    def begin_episodes(self, begun: Array) -> None:
        """Note that the next step of the envs that `begun` [env] marks is the first of an episode."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the next numbers depend on beside the step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""


class SampledPolicy(Protocol):
    """A policy whose actions are a function of observations and noise."""

    def sample(self, obs: Array, noise: Array) -> Array:
        """Return actions for observations [env, ...] and noise [env, size], in the policy's own space."""

    def to_env(self, actions: Array) -> Array:
        """Return what the envs receive for actions in the policy's own space."""


class SamplingActor:
    """Draws its actions from a policy's distribution."""

    def __init__(self, policy: SampledPolicy, noise: Noise) -> None:
        self._policy, self._noise = policy, noise
        self.to_env = policy.to_env
        self.begin_episodes = noise.begin_episodes
        self.state_dict = noise.state_dict
        self.load_state_dict = noise.load_state_dict

    def act(self, obs: Array, step: int) -> Array:
        """Return actions drawn for observations [env, ...]."""
        return self._policy.sample(obs, self._noise.at(step))


class WarmUpActor:
    """Acts uniformly between -1 and 1 before env step `until`, then as another actor does."""

    def __init__(self, actor: Actor, uniform: Draws, until: int) -> None:
        self._actor, self._uniform, self._until = actor, uniform, until
        self.to_env = actor.to_env
        self.begin_episodes = actor.begin_episodes
        self.state_dict = actor.state_dict
        self.load_state_dict = actor.load_state_dict

    def act(self, obs: Array, step: int) -> Array:
        """Return uniform actions, or those of the other actor after the warm-up."""
        if step < self._until:
            return (2.0 * self._uniform.at(step) - 1.0).astype(np.float32)
        return self._actor.act(obs, step)
