"""Observations to features, one float32 row each, and the running normalisation of features and rewards.

The statistics are part of the learner: saved with it, and frozen outside of training.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.errors import EnvironmentSetupError
from rl_training.memory import check_memory
from rl_training.packing import SUPPORTED_OBSERVATIONS, Leaf, PackedObservations, StackedFrames, is_image, nest
from rl_training.policies.base import Array

_STATISTICS_BYTES = 40  # of the running statistics of one number
_KINDS = ("vector", "one_hot", "image")
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
        """Update mean and variance with a batch [item, ...]."""
        values = batch.astype(np.float64)
        mean, variance, count = values.mean(axis=0), values.var(axis=0), len(values)
        total = self.count + count
        shift = mean - self.mean
        squares = self.variance * self.count + variance * count + shift**2 * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.variance, self.count = squares / total, total

    def state_dict(self) -> dict[str, Any]:
        """Return mean, variance and count."""
        return {"mean": torch.tensor(self.mean), "variance": torch.tensor(self.variance), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
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
        """Update the statistics with raw features [item, size]."""
        if self.enabled:
            self.moments.update(features)
            self._refresh()

    def apply_array(self, features: Array) -> Array:
        """Return normalised and clipped features."""
        if not self.enabled:
            return features
        normalized: Array = np.clip((features - self._mean) * self._scale, -CLIP, CLIP)
        return normalized

    def apply_tensor(self, features: Tensor) -> Tensor:
        """Return the same in torch."""
        if not self.enabled:
            return features
        mean, scale = (torch.from_numpy(part).to(features.device) for part in (self._mean, self._scale))
        return ((features - mean) * scale).clamp(-CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments."""
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
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
        """Return scaled and clipped rewards."""
        if not self.enabled:
            return rewards
        scale = 1.0 / float(np.sqrt(self.moments.variance + _EPSILON))
        return (rewards * scale).clamp(-CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and the running returns."""
        return {"moments": self.moments.state_dict(), "returns": torch.tensor(self._returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.moments.load_state_dict(state["moments"])
        self._returns = state["returns"].numpy().copy()


@dataclass(frozen=True)
class FeaturePart:
    """The columns of the features that come from one part of the observation."""

    path: tuple[str | int, ...]
    """Where the part lies in a nested observation; empty if the observation is not nested."""
    start: int
    stop: int
    shape: tuple[int, ...]
    """The shape of the part's features for one observation."""
    kind: Literal["vector", "one_hot", "image"]

    @property
    def name(self) -> str:
        """The path in dotted form, such as `camera.front`."""
        return ".".join(map(str, self.path))

    @property
    def channels_last(self) -> bool:
        """Whether the channels of an image are its last axis."""
        return len(self.shape) == 3 and self.shape[-1] < min(self.shape[:2])


class _LeafEncoder:
    """Turns the values of one part of the observations into float32 columns."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self._choices = leaf.choices
        self._scale = np.float32(1.0)
        if self._choices is not None:
            self.kind: Literal["vector", "one_hot", "image"] = "one_hot"
            binary = isinstance(leaf.space, spaces.MultiBinary)
            self.shape = leaf.shape if binary else (int(self._choices.sum()),)
            if binary:
                self._choices = None
        else:
            self.kind = "image" if is_image(leaf.space) else "vector"
            self.shape = leaf.shape or (1,)
            if leaf.dtype == np.uint8:
                self._scale = np.float32(leaf.space.high.max())  # type: ignore[union-attr]  # a Box
        self.size = int(np.prod(self.shape))

    def encode_array(self, values: Array) -> Array:
        """Return features [batch, size] of values [batch, ...]."""
        if self._choices is None:
            flat: Array = values.reshape(len(values), self.size).astype(np.float32, copy=False)
            return flat / self._scale if self._scale != 1.0 else flat
        features = np.zeros((len(values), self.size), dtype=np.float32)
        columns = values.reshape(len(values), -1) - self.leaf.first_choice + self._first_columns
        features[np.arange(len(values))[:, None], columns] = 1.0
        return features

    def encode_tensor(self, values: Tensor) -> Tensor:
        """Return the same in torch."""
        if self._choices is None:
            if values.dtype is torch.float32 and values.dim() == 2:
                return values
            flat = values.reshape(len(values), self.size).float()
            return flat.div_(float(self._scale)) if self._scale != 1.0 else flat  # bytes: `flat` is a copy
        shift = torch.as_tensor(self._first_columns - self.leaf.first_choice, device=values.device)
        columns = values.reshape(len(values), -1).long() + shift
        return torch.zeros(len(values), self.size, device=values.device).scatter_(1, columns, 1.0)

    @property
    def _first_columns(self) -> Array:
        """The column of the first choice of every number."""
        assert self._choices is not None
        return np.cumsum(self._choices) - self._choices


class Encoder:
    """Turns observations into features: vectors first, then one-hot numbers, then images.

    Discrete and MultiDiscrete values become one-hot, bytes are scaled by their highest value to 0..1, and everything is
    flattened. Only vectors are normalised.
    """

    def __init__(self, space: spaces.Space[Any], *, normalize: bool = False) -> None:
        self.space = space
        self._packed = space if isinstance(space, PackedObservations) else None
        if self._packed is None and not isinstance(space, (spaces.Box, spaces.Discrete)):
            raise EnvironmentSetupError(
                f"observation space {type(space).__name__} is not supported; supported: {SUPPORTED_OBSERVATIONS}. "
                "Wrap the env with a gymnasium.ObservationWrapper"
            )
        leaves = [Leaf((), space, 0)] if self._packed is None else self._packed.leaves  # type: ignore[arg-type]
        self._encoders = sorted(map(_LeafEncoder, leaves), key=lambda each: _KINDS.index(each.kind))
        ends = np.cumsum([each.size for each in self._encoders]).tolist()
        self.parts = tuple(
            FeaturePart(each.leaf.path, end - each.size, end, each.shape, each.kind)
            for each, end in zip(self._encoders, ends, strict=True)
        )
        self.size: int = ends[-1]
        self.shape: tuple[int, ...] = space.shape or ()
        """The shape of one stored observation."""
        self.storage_dtype = _storage_dtype(space)
        self.num_frames = space.num_frames if isinstance(space, StackedFrames) else 1
        """How many frames an observation stacks along its first axis."""
        self._num_vector = sum(part.stop - part.start for part in self.parts if part.kind == "vector")
        num_bytes = 4 * self.size + _STATISTICS_BYTES * self._num_vector
        check_memory(num_bytes, f"the observations of {space} are too large, wrap the env")
        self.normalizer = FeatureNormalizer(self._num_vector, enabled=normalize and self._num_vector > 0)

    def observe(self, obs: Array) -> None:
        """Let the running normalisation take in observations [batch, ...], if it is on."""
        if self.normalizer.enabled:
            self.normalizer.update(self._features(obs)[:, : self._num_vector])

    def encode_array(self, obs: Array) -> Array:
        """Return features [batch, size] of observations [batch, ...]."""
        features = self._features(obs)
        if not self.normalizer.enabled:
            return features
        vectors = self.normalizer.apply_array(features[:, : self._num_vector])
        return vectors if self._num_vector == self.size else np.hstack([vectors, features[:, self._num_vector :]])

    def _features(self, obs: Array) -> Array:
        if self._packed is None:
            return self._encoders[0].encode_array(obs)
        packed = self._packed
        return np.hstack([each.encode_array(packed.read(obs, each.leaf)) for each in self._encoders])

    def encode_tensor(self, obs: Tensor) -> Tensor:
        """Return features [batch, size] of stored observations [batch, ...]."""
        if self._packed is None:
            features = self._encoders[0].encode_tensor(obs)
        else:
            features = torch.cat([each.encode_tensor(_read(obs, each.leaf)) for each in self._encoders], dim=1)
        if not self.normalizer.enabled:
            return features
        vectors = self.normalizer.apply_tensor(features[:, : self._num_vector])
        return vectors if self._num_vector == self.size else torch.cat([vectors, features[:, self._num_vector :]], 1)

    @property
    def mask_size(self) -> int:
        """How many actions, or choices of all actions together, a mask covers; 0 if observations have no mask."""
        return 0 if self._packed is None or self._packed.mask is None else self._packed.mask.size

    def masks_array(self, obs: Array) -> Array | None:
        """Return which actions are legal, [batch, mask_size]; none if observations have no mask."""
        if self._packed is None or self._packed.mask is None:
            return None
        return self._packed.read(obs, self._packed.mask).view(np.bool_)

    def masks_tensor(self, obs: Tensor) -> Tensor | None:
        """Return the same in torch."""
        if self._packed is None or self._packed.mask is None:
            return None
        return _read(obs, self._packed.mask).bool()

    def nest(self, features: Tensor) -> Any:
        """Return features [batch, size] in the structure of the observations, each part in its own shape."""
        rows = len(features)
        values = {part.path: features[:, part.start : part.stop].reshape(rows, *part.shape) for part in self.parts}
        return values[()] if () in values else nest(self.space.original, values)  # type: ignore[attr-defined]


def _read(rows: Tensor, leaf: Leaf) -> Tensor:
    """Return the values of one part in packed rows [batch, bytes], as [batch, *shape]."""
    values = rows[:, leaf.start : leaf.start + leaf.num_bytes].view(_torch_type(leaf.dtype))
    return values.reshape(len(rows), *leaf.shape)


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _storage_dtype(space: spaces.Space[Any]) -> torch.dtype:
    if isinstance(space, spaces.Discrete):
        return torch.int64
    return torch.uint8 if space.dtype == np.uint8 else torch.float32
