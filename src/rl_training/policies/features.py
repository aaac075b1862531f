"""The encoder, which turns observations into rows of float32 features, and the normalisation of features and rewards.

The statistics are part of the learner: saved with it, and frozen outside of training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.memory import check_memory
from rl_training.packing import Leaf, PackedObservations, StackedFrames, is_image, nest, unsupported_observations
from rl_training.policies.base import Array

_STATISTICS_BYTES = 40  # of the running statistics of one number
FeatureKind = Literal["vector", "one_hot", "image"]
_KINDS: tuple[str, ...] = get_args(FeatureKind)  # in the order of the features
CLIP = 10.0  # deviations beyond which a normalised number is cut
_EPSILON = 1e-8

Moments = npt.NDArray[np.float64]


class RunningMoments:
    """Mean and variance of all batches seen so far, merged without keeping the batches (Chan et al. 1979)."""

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
    """Normalises features to mean 0 and deviation 1, with the same results in NumPy and torch.

    New statistics apply from the next `refresh` on, so that an observation has the same features during a whole
    iteration. If not `enabled`, the normalizer returns features unchanged.
    """

    def __init__(self, size: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self.moments = RunningMoments((size,))
        self.refresh()

    def refresh(self) -> None:
        """Apply the newest statistics from now on."""
        self._is_fresh = True
        self.mean = self.moments.mean.astype(np.float32)
        self.scale = (1.0 / np.sqrt(self.moments.variance + _EPSILON)).astype(np.float32)

    def update(self, features: Array) -> None:
        """Update the statistics with raw features [item, size]."""
        if self.enabled:
            self.moments.update(features)
            self._is_fresh = False

    def apply_array(self, features: Array) -> Array:
        """Return normalised and clipped features."""
        if not self.enabled:
            return features
        normalized: Array = np.clip((features - self.mean) * self.scale, -CLIP, CLIP)
        return normalized

    def apply_tensor(self, features: Tensor) -> Tensor:
        """Do the same as `apply_array` in torch."""
        if not self.enabled:
            return features
        mean, scale = (torch.from_numpy(part).to(features.device) for part in (self.mean, self.scale))
        return ((features - mean) * scale).clamp(-CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, and the mean and scale in use if they are older than the moments."""
        if self._is_fresh:
            return self.moments.state_dict()
        applied = {"mean": torch.tensor(self.mean), "scale": torch.tensor(self.scale)}
        return {**self.moments.state_dict(), "applied": applied}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.moments.load_state_dict(state)
        self.refresh()
        if "applied" in state:
            self._is_fresh = False
            self.mean, self.scale = (state["applied"][name].numpy().copy() for name in ("mean", "scale"))


class RewardNormalizer:
    """Divides rewards by the deviation of the discounted return, which starts at 0 in every episode of every env.

    If not `enabled`, it returns rewards unchanged.
    """

    def __init__(self, gamma: float, *, enabled: bool) -> None:
        self.gamma, self.enabled = gamma, enabled
        self.moments = RunningMoments(())
        self._returns: Moments = np.zeros(0)

    def update(self, rewards: Array, ended: Array) -> None:
        """Update the statistics with raw rewards [step, env]; `ended` marks the last steps of episodes."""
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
    """The keys and positions that lead to the part in a nested observation; empty if the observation is not nested."""
    start: int
    stop: int
    shape: tuple[int, ...]
    """The shape of the part's features for one observation."""
    kind: FeatureKind

    @property
    def name(self) -> str:
        """The path in dotted form, such as `camera.front`."""
        return ".".join(map(str, self.path))

    @property
    def channels_last(self) -> bool:
        """Whether the channels of an image are its last axis."""
        return len(self.shape) == 3 and self.shape[-1] < min(self.shape[:2])


class LeafEncoder:
    """Turns the values of one part of the observations into float32 columns."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.choices = leaf.choices
        """The number of one-hot columns of each number; none if numbers are kept as they are."""
        self.scale = np.float32(1.0)
        """The number that all values are divided by."""
        if self.choices is not None:
            self.kind: FeatureKind = "one_hot"
            binary = isinstance(leaf.space, spaces.MultiBinary)
            self.shape = leaf.shape if binary else (int(self.choices.sum()),)
            if binary:
                self.choices = None
        else:
            self.kind = "image" if is_image(leaf.space) else "vector"
            self.shape = leaf.shape or (1,)
            if leaf.dtype == np.uint8:
                self.scale = np.float32(leaf.space.high.max())  # type: ignore[union-attr]  # a Box
        self.size = int(np.prod(self.shape))

    def encode_array(self, values: Array) -> Array:
        """Return features [batch, size] of values [batch, ...]."""
        if self.choices is None:
            flat: Array = values.reshape(len(values), self.size).astype(np.float32, copy=False)
            return flat / self.scale if self.scale != 1.0 else flat
        features = np.zeros((len(values), self.size), dtype=np.float32)
        columns = values.reshape(len(values), -1) - self.leaf.first_choice + self._first_columns
        features[np.arange(len(values))[:, None], columns] = 1.0
        return features

    def encode_tensor(self, values: Tensor) -> Tensor:
        """Do the same as `encode_array` in torch."""
        if self.choices is None:
            if values.dtype is torch.float32 and values.dim() == 2:
                return values
            flat = values.reshape(values.shape[0], self.size).float()
            return flat.div_(float(self.scale)) if self.scale != 1.0 else flat  # bytes: `flat` is a copy
        shift = torch.as_tensor(self._first_columns - self.leaf.first_choice, device=values.device)
        columns = values.reshape(values.shape[0], -1).long() + shift
        return torch.zeros(values.shape[0], self.size, device=values.device).scatter_(1, columns, 1.0)

    @property
    def _first_columns(self) -> Array:
        """The column of the first choice of every number."""
        assert self.choices is not None
        return np.cumsum(self.choices) - self.choices


class Encoder:
    """Turns observations into features: vectors first, then one-hot numbers, then images.

    Discrete and MultiDiscrete values become one-hot, bytes are scaled by their highest value to 0..1, and everything is
    flattened. Only vectors are normalised.
    """

    def __init__(self, space: spaces.Space[Any], *, normalize: bool = False) -> None:
        self.space = space
        self._packed = space if isinstance(space, PackedObservations) else None
        if self._packed is None and not isinstance(space, (spaces.Box, spaces.Discrete)):
            raise unsupported_observations(space)
        leaves = [Leaf((), space, 0)] if self._packed is None else self._packed.leaves  # type: ignore[arg-type]
        self.encoders = sorted(map(LeafEncoder, leaves), key=lambda each: _KINDS.index(each.kind))
        ends = np.cumsum([each.size for each in self.encoders]).tolist()
        self.parts = tuple(
            FeaturePart(each.leaf.path, end - each.size, end, each.shape, each.kind)
            for each, end in zip(self.encoders, ends, strict=True)
        )
        self.size: int = ends[-1]
        self.shape: tuple[int, ...] = space.shape or ()
        """The shape of one stored observation."""
        self.storage_dtype = _storage_dtype(space)
        self.num_frames = space.num_frames if isinstance(space, StackedFrames) else 1
        """The number of frames that an observation stacks along its first axis."""
        self.num_vector = sum(part.stop - part.start for part in self.parts if part.kind == "vector")
        """The number of features that can be normalised; they are the first columns."""
        num_bytes = 4 * self.size + _STATISTICS_BYTES * self.num_vector
        check_memory(num_bytes, f"the observations of {space} are too large, wrap the env")
        self.normalizer = FeatureNormalizer(self.num_vector, enabled=normalize and self.num_vector > 0)

    def observe(self, obs: Array) -> None:
        """If observations are normalised, update the statistics with these [batch, ...]; `refresh` applies them."""
        if self.normalizer.enabled:
            self.normalizer.update(self._features(obs)[:, : self.num_vector])

    def refresh(self) -> None:
        """Apply the newest statistics from now on."""
        self.normalizer.refresh()

    def encode_array(self, obs: Array) -> Array:
        """Return features [batch, size] of observations [batch, ...]."""
        features = self._features(obs)
        if not self.normalizer.enabled:
            return features
        vectors = self.normalizer.apply_array(features[:, : self.num_vector])
        return vectors if self.num_vector == self.size else np.hstack([vectors, features[:, self.num_vector :]])

    def _features(self, obs: Array) -> Array:
        if self._packed is None:
            return self.encoders[0].encode_array(obs)
        packed = self._packed
        return np.hstack([each.encode_array(packed.read(obs, each.leaf)) for each in self.encoders])

    def encode_tensor(self, obs: Tensor) -> Tensor:
        """Return features [batch, size] of stored observations [batch, ...]."""
        return self.encode_parts([obs] if self._packed is None else [_read(obs, each.leaf) for each in self.encoders])

    def encode_parts(self, values: Sequence[Tensor]) -> Tensor:
        """Return features [batch, size] of values [batch, ...] of all parts, in the order of `encoders`."""
        encoded = [each.encode_tensor(own) for each, own in zip(self.encoders, values, strict=True)]
        features = encoded[0] if self._packed is None else torch.cat(encoded, dim=1)
        if not self.normalizer.enabled:
            return features
        vectors = self.normalizer.apply_tensor(features[:, : self.num_vector])
        return vectors if self.num_vector == self.size else torch.cat([vectors, features[:, self.num_vector :]], 1)

    @property
    def mask_size(self) -> int:
        """The number of actions, or of choices of all actions, that a mask covers; 0 if observations have no mask."""
        return 0 if self._packed is None or self._packed.mask is None else self._packed.mask.size

    def masks_array(self, obs: Array) -> Array | None:
        """Return which actions are legal, [batch, mask_size]; none if observations have no mask."""
        if self._packed is None or self._packed.mask is None:
            return None
        return self._packed.read(obs, self._packed.mask).view(np.bool_)

    def masks_tensor(self, obs: Tensor) -> Tensor | None:
        """Do the same as `masks_array` in torch."""
        if self._packed is None or self._packed.mask is None:
            return None
        return _read(obs, self._packed.mask).bool()

    def nest(self, features: Tensor) -> Any:
        """Return features [batch, size] in the structure of the observations, each part in its own shape."""
        rows = features.shape[0]
        values = {part.path: features[:, part.start : part.stop].reshape(rows, *part.shape) for part in self.parts}
        return values[()] if () in values else nest(self.space.original, values)  # type: ignore[attr-defined]


def _read(rows: Tensor, leaf: Leaf) -> Tensor:
    """Return the values of one part in packed rows [batch, bytes], as [batch, *shape]."""
    dtype = torch.from_numpy(np.empty(0, leaf.dtype)).dtype
    values = rows[:, leaf.start : leaf.start + leaf.num_bytes].view(dtype)
    return values.reshape(len(rows), *leaf.shape)


def _storage_dtype(space: spaces.Space[Any]) -> torch.dtype:
    if isinstance(space, spaces.Discrete):
        return torch.int64
    return torch.uint8 if space.dtype == np.uint8 else torch.float32
