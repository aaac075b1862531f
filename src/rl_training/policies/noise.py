"""Where acting draws from: noise that is new at every step, or noise that remembers its last value in each env."""

import math
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces

from rl_training.errors import EnvironmentSetupError
from rl_training.policies.base import Array
from rl_training.policies.networks.protocol import FloatArray, Shape


class ActingNoise(Protocol):
    """Draws for a policy while it explores."""

    stream: np.random.Generator
    """What all draws come from; its state is kept by the policy."""

    def normal(self, shape: Shape) -> FloatArray:
        """Standard normal noise [env, dimension] for the next step."""

    def begin_episodes(self, begun: Array) -> None:
        """Forget the past of the envs that `begun` [env] marks."""

    def state_dict(self) -> dict[str, Any]:
        """What the noise remembers, to lie beside the rest of the policy's state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""


class WhiteNoise:
    """Every step's noise is independent of the last."""

    def __init__(self, stream: np.random.Generator) -> None:
        self.stream = stream

    def normal(self, shape: Shape) -> FloatArray:
        """Standard normal noise [env, dimension]."""
        return self.stream.standard_normal(shape, dtype=np.float32)

    def begin_episodes(self, begun: Array) -> None:
        """There is no past to forget."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it remembers nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to take over."""


class CorrelatedNoise:
    """Each env's noise keeps a share of its last one, and so explores in one direction for many steps.

    What each step sees is standard normal all the same, so log-probs and entropies hold.
    """

    def __init__(self, stream: np.random.Generator, correlation: float, shape: Shape) -> None:
        self.stream = stream
        self._correlation = correlation
        self._innovation = math.sqrt(1.0 - correlation**2)
        self._last = stream.standard_normal(shape, dtype=np.float32)

    def normal(self, shape: Shape) -> FloatArray:
        """Standard normal noise [env, dimension], the next of an AR(1) process per env."""
        # Instead of the pink noise of Eberhard et al. 2023: one number per env and dimension is all it remembers.
        fresh = self.stream.standard_normal(shape, dtype=np.float32)
        self._last = self._correlation * self._last + self._innovation * fresh
        return self._last

    def begin_episodes(self, begun: Array) -> None:
        """Let the processes of these envs begin anew."""
        fresh = self.stream.standard_normal(self._last.shape, dtype=np.float32)
        self._last = np.where(begun[:, None], fresh, self._last)

    def state_dict(self) -> dict[str, Any]:
        """Where each process stands."""
        return {"acting_noise": torch.tensor(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped; the processes of a run without correlation so far are new."""
        if "acting_noise" in state:
            self._last = state["acting_noise"].numpy().copy()


def build_noise(
    stream: np.random.Generator, action_space: spaces.Space[Any], *, correlation: float, num_envs: int
) -> ActingNoise:
    """The noise of a policy that acts in `num_envs` envs."""
    if correlation == 0.0:
        return WhiteNoise(stream)
    if not isinstance(action_space, spaces.Box):
        raise EnvironmentSetupError(
            f"noise_correlation={correlation} needs continuous actions, the action space is {action_space}; "
            "leave it out"
        )
    return CorrelatedNoise(stream, correlation, (num_envs, int(np.prod(action_space.shape))))
