"""Observations to features: one flat float32 row per observation, the same for acting and for training."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.errors import EnvironmentSetupError
from rl_training.memory import check_memory
from rl_training.policies.base import Array
from rl_training.policies.normalization import FeatureNormalizer

_FEATURE_BYTES = 40  # of its running statistics
SUPPORTED_OBSERVATIONS = "Box (any shape, flattened) and Discrete (one-hot)"


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
