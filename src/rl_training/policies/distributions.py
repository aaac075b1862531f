"""Action distributions, one per kind of action space: drawn in NumPy while acting, scored in torch while learning.

A distribution also knows how its actions become the env's: the policy lives in its own space, the env in its bounds.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.errors import EnvironmentSetupError
from rl_training.policies.base import Array
from rl_training.policies.draws import Kind
from rl_training.policies.networks.protocol import FloatArray, Shape

LOG_STD = "log_std"
SUPPORTED_ACTIONS = "Discrete and Box"
_WIDEST = 1e30  # a half range beyond this stands for "no bound"


class ActionDistribution(Protocol):
    """What the actor's outputs mean."""

    num_outputs: int
    """Outputs the actor network needs."""
    noise_kind: Kind
    num_noise: int
    """How many random numbers of this kind one action is made of."""
    shapes: dict[str, Shape]
    """Parameters of the distribution itself, beside the network's."""
    action_shape: Shape
    action_dtype: torch.dtype

    def sample(self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array) -> Array:
        """Return one action per row, as `noise` [batch, num_noise] decides."""

    def mode(self, outputs: FloatArray) -> Array:
        """The likeliest action per row."""

    def to_env(self, actions: Array) -> Array:
        """What the env receives for these actions."""

    def score(self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor) -> "Scores":
        """How likely these actions are."""


class Scores(Protocol):
    """Log-probabilities and entropies of a batch, and the way back from them."""

    logprobs: Tensor  # [batch]
    entropies: Tensor  # [batch]

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the gradients of a loss in the actor's outputs and in the distribution's own parameters.

        They follow from its gradients in the log-probs [batch], and in every one of the entropies.
        """


class Categorical:
    """A softmax over the actions of a Discrete space."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.num_outputs = self.num_noise = int(space.n)
        self.noise_kind: Kind = "gumbel"
        self.shapes: dict[str, Shape] = {}
        self.action_shape: Shape = ()
        self.action_dtype = torch.int64
        self._start = int(space.start)

    def sample(self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array) -> Array:
        """Return one action per row by the Gumbel-max trick, which needs no normalisation."""
        del params
        drawn: Array = (outputs + noise).argmax(axis=1)
        return drawn

    def mode(self, outputs: FloatArray) -> Array:
        """The likeliest action per row."""
        likeliest: Array = outputs.argmax(axis=1)
        return likeliest

    def to_env(self, actions: Array) -> Array:
        """Count from the space's own start."""
        return actions + self._start if self._start else actions

    def score(self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor) -> "CategoricalScores":
        """How likely these actions are."""
        del params
        return CategoricalScores(outputs, actions)


class CategoricalScores:
    """Under a softmax of `outputs` [batch, action]."""

    def __init__(self, outputs: Tensor, actions: Tensor) -> None:
        self._actions = actions.unsqueeze(1)
        self._logprobs = torch.log_softmax(outputs, dim=1)
        self._probs = self._logprobs.exp()
        self.logprobs = self._logprobs.gather(1, self._actions).squeeze(1)
        self.entropies = -(self._probs * self._logprobs).sum(dim=1)

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """d log p(a) / d output = [output is a's] - p, and d entropy / d output = -p (log p + entropy)."""
        gradients = logprob_gradients.unsqueeze(1)
        outputs = (self._probs * -gradients).scatter_add_(1, self._actions, gradients)
        if entropy_gradient:
            outputs -= entropy_gradient * self._probs * (self._logprobs + self.entropies.unsqueeze(1))
        return outputs, {}


class BoundedActions:
    """The policy's continuous space against the env's: where both bounds are finite, -1 and 1 stand for them."""

    def __init__(self, space: spaces.Box) -> None:
        self.size = int(np.prod(space.shape))
        self._env_shape, self._env_dtype = space.shape, space.dtype
        self._low, self._high = space.low.ravel(), space.high.ravel()
        low, high = np.nan_to_num(self._low.astype(np.float64)), np.nan_to_num(self._high.astype(np.float64))
        bounded = high / 2 - low / 2 < _WIDEST
        self._middle = np.where(bounded, high / 2 + low / 2, 0.0).astype(np.float32)
        self._half_range = np.where(bounded, high / 2 - low / 2, 1.0).astype(np.float32)

    def to_env(self, actions: Array) -> Array:
        """Scaled to the env's bounds, clipped to them, in its shape."""
        scaled = np.clip(self._middle + actions * self._half_range, self._low, self._high)
        return scaled.reshape(len(actions), *self._env_shape).astype(self._env_dtype, copy=False)


class DiagonalGaussian:
    """Independent normals with a learned spread that does not depend on the observation.

    The draw itself is unbounded, and clipped for the env only.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._actions = BoundedActions(space)
        self.num_outputs = self.num_noise = self._actions.size
        self.noise_kind: Kind = "normal"
        self.shapes: dict[str, Shape] = {LOG_STD: (self.num_outputs,)}
        self.action_shape: Shape = (self.num_outputs,)
        self.action_dtype = torch.float32

    def sample(self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array) -> Array:
        """Return one unclipped action per row."""
        drawn: Array = outputs + noise * np.exp(params[LOG_STD])
        return drawn

    def mode(self, outputs: FloatArray) -> Array:
        """The means."""
        return outputs

    def to_env(self, actions: Array) -> Array:
        """Scaled to the env's bounds, clipped to them, in its shape."""
        return self._actions.to_env(actions)

    def score(self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor) -> "GaussianScores":
        """How likely these actions are."""
        return GaussianScores(outputs, params[LOG_STD], actions)


class GaussianScores:
    """Under normals around `means` [batch, dim], summed over the dimensions."""

    def __init__(self, means: Tensor, log_std: Tensor, actions: Tensor) -> None:
        self._precision = torch.exp(-log_std)
        self._deviations = (actions - means) * self._precision
        self._squares = self._deviations.square()
        log_scale = log_std.sum() + 0.5 * len(log_std) * math.log(2 * math.pi)
        self.logprobs = -0.5 * self._squares.sum(dim=1) - log_scale
        self.entropies = (log_scale + 0.5 * len(log_std)).expand(len(actions))

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1; d entropy is 1."""
        gradients = logprob_gradients.unsqueeze(1)
        log_std = (gradients * (self._squares - 1.0)).sum(dim=0) + entropy_gradient * len(gradients)
        return gradients * self._deviations * self._precision, {LOG_STD: log_std}


def build_distribution(space: spaces.Space[Any]) -> ActionDistribution:
    """The distribution for an action space."""
    if isinstance(space, spaces.Discrete):
        return Categorical(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return DiagonalGaussian(space)
    raise EnvironmentSetupError(
        f"action space {type(space).__name__} is not supported here; supported: {SUPPORTED_ACTIONS} of floats. "
        "Wrap the env with a gymnasium.ActionWrapper"
    )
