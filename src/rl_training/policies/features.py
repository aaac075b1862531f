"""Observations to features, one float32 row each, and the running normalisation of features and rewards.

The statistics are part of the learner: saved with it, and frozen outside of training.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.errors import EnvironmentSetupError
from rl_training.memory import check_memory
from rl_training.policies.base import Array

_FEATURE_BYTES = 40  # of its running statistics
SUPPORTED_OBSERVATIONS = "Box (any shape, flattened) and Discrete (one-hot)"
CLIP = 10.0  # deviations beyond which a normalised number is cut
_EPSILON = 1e-8

Moments = npt.NDArray[np.float64]


class RunningMoments:
    """Mean and variance of all batches seen so far, merged without keeping them (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean: Moments = np.zeros(shape)
        self.variance: Moments = np.ones(shape)
        self.count = 0

    def update(self, batch: Array) -> None:
        """Take in a batch [item, ...]."""
        values = batch.astype(np.float64)
        mean, variance, count = values.mean(axis=0), values.var(axis=0), len(values)
        total = self.count + count
        shift = mean - self.mean
        squares = self.variance * self.count + variance * count + shift**2 * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.variance, self.count = squares / total, total

    def state_dict(self) -> dict[str, Any]:
        """Mean, variance and count."""
        return {"mean": torch.tensor(self.mean), "variance": torch.tensor(self.variance), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self.mean, self.variance = state["mean"].numpy().copy(), state["variance"].numpy().copy()
        self.count = int(state["count"])


class FeatureNormalizer:
    """Features to mean 0 and deviation 1, the same in NumPy and torch; `update` moves it, using it does not.

    Switched off, it passes everything through.
    """

    def __init__(self, size: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self.moments = RunningMoments((size,))
        self._refresh()

    def _refresh(self) -> None:
        self._mean = self.moments.mean.astype(np.float32)
        self._scale = (1.0 / np.sqrt(self.moments.variance + _EPSILON)).astype(np.float32)

    def update(self, features: Array) -> None:
        """Take in raw features [item, size]."""
        if self.enabled:
            self.moments.update(features)
            self._refresh()

    def apply_array(self, features: Array) -> Array:
        """Normalised and clipped features."""
        if not self.enabled:
            return features
        normalized: Array = np.clip((features - self._mean) * self._scale, -CLIP, CLIP)
        return normalized

    def apply_tensor(self, features: Tensor) -> Tensor:
        """The same in torch."""
        if not self.enabled:
            return features
        mean, scale = (torch.from_numpy(part).to(features.device) for part in (self._mean, self._scale))
        return ((features - mean) * scale).clamp(-CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        """The moments."""
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self.moments.load_state_dict(state)
        self._refresh()


class RewardNormalizer:
    """Rewards divided by the deviation of the discounted return, which is estimated per env and reset at an end.

    Switched off, it passes everything through.
    """

    def __init__(self, gamma: float, *, enabled: bool) -> None:
        self.gamma, self.enabled = gamma, enabled
        self.moments = RunningMoments(())
        self._returns: Moments = np.zeros(0)

    def update(self, rewards: Array, ended: Array) -> None:
        """Take in raw rewards [step, env], and which episodes ended with their step."""
        if not self.enabled:
            return
        if len(self._returns) != rewards.shape[1]:
            self._returns = np.zeros(rewards.shape[1])
        estimates = np.empty(rewards.shape)
        for step, step_rewards in enumerate(rewards):
            estimates[step] = self.gamma * self._returns + step_rewards
            self._returns = np.where(ended[step], 0.0, estimates[step])
        self.moments.update(estimates.ravel())

    def apply(self, rewards: Tensor) -> Tensor:
        """Scaled and clipped rewards."""
        if not self.enabled:
            return rewards
        scale = 1.0 / float(np.sqrt(self.moments.variance + _EPSILON))
        return (rewards * scale).clamp(-CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        """Moments and running returns."""
        return {"moments": self.moments.state_dict(), "returns": torch.tensor(self._returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self.moments.load_state_dict(state["moments"])
        self._returns = state["returns"].numpy().copy()


class Encoder:
    """Flattens Box observations, scales uint8 ones by their highest value to 0..1, makes Discrete ones one-hot."""

    def __init__(self, space: spaces.Space[Any], *, normalize: bool = False) -> None:
        if isinstance(space, spaces.Box):
            self.size = int(np.prod(space.shape))
            self.storage_dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
            self._highest = float(space.high.max()) if space.dtype == np.uint8 else 1.0
        elif isinstance(space, spaces.Discrete):
            self.size = int(space.n)
            self.storage_dtype = torch.int64
            self._highest = 1.0
        else:
            raise EnvironmentSetupError(
                f"observation space {type(space).__name__} is not supported; supported: {SUPPORTED_OBSERVATIONS}. "
                "Wrap the env, for example with gymnasium.wrappers.FlattenObservation"
            )
        self.shape: tuple[int, ...] = space.shape or ()
        self.feature_shape = self.shape or (self.size,)
        """The shape that a network may give to one row of features."""
        self._start = int(space.start) if isinstance(space, spaces.Discrete) else None
        check_memory(_FEATURE_BYTES * self.size, f"the observations of {space} are too large, wrap the env")
        self.normalizer = FeatureNormalizer(self.size, enabled=normalize)

    def observe(self, obs: Array) -> None:
        """Let the running normalisation take in observations [batch, ...], if it is on."""
        if self.normalizer.enabled:
            self.normalizer.update(self._features(obs))

    def encode_array(self, obs: Array) -> Array:
        """Features [batch, size] of observations [batch, ...]."""
        return self.normalizer.apply_array(self._features(obs))

    def _features(self, obs: Array) -> Array:
        if self._start is not None:
            features = np.zeros((len(obs), self.size), dtype=np.float32)
            features[np.arange(len(obs)), obs - self._start] = 1.0
            return features
        features = obs.reshape(len(obs), self.size).astype(np.float32, copy=False)
        return features / np.float32(self._highest) if self._highest != 1.0 else features

    def encode_tensor(self, obs: Tensor) -> Tensor:
        """Features [batch, size] of stored observations [batch, ...]."""
        if self._start is not None:
            features = torch.nn.functional.one_hot(obs - self._start, self.size).float()
        elif obs.dtype is torch.float32 and obs.dim() == 2:
            features = obs
        else:
            features = obs.reshape(len(obs), self.size).float()
        if self._highest != 1.0:
            features = features / self._highest
        return self.normalizer.apply_tensor(features)
