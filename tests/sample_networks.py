"""Encoders as a user would write them, named in configs as `sample_networks:Name`, and an env of small images."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import Env, register, registry, spaces
from torch import Tensor, nn


class TanhNet(nn.Sequential):
    """With `hidden_sizes: []`, what `hidden_sizes: [32], activation: tanh` gives."""

    activation: type[nn.Module] = nn.Tanh
    features_dim = 32

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(nn.Linear(space.shape[0], 32), self.activation())


class ReluNet(TanhNet):
    """With `hidden_sizes: []`, what `hidden_sizes: [32], activation: relu` gives."""

    activation = nn.ReLU


class Unchanged(nn.Flatten):
    """No layer of its own: the hidden layers see the observations as they are."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.features_dim = np.prod(space.shape)  # a NumPy integer, as many users write it


class GridCNN(nn.Module):
    """For images of any size; the grid of positions is a buffer that never changes."""

    grid: Tensor

    def __init__(self, space: spaces.Box, channels: int = 4) -> None:
        super().__init__()
        height, width = space.shape
        self.convolution = nn.Conv2d(2, channels, kernel_size=3, stride=2, padding=1)
        self.norm = nn.GroupNorm(1, channels)
        self.register_buffer("grid", torch.linspace(-1.0, 1.0, width).expand(1, 1, height, -1).contiguous())
        with torch.no_grad():
            self.features_dim = self(torch.zeros(1, height, width)).shape[1]

    def forward(self, images: Tensor) -> Tensor:
        planes = torch.cat([images.unsqueeze(1), self.grid.expand(len(images), -1, -1, -1)], dim=1)
        return torch.relu(self.norm(self.convolution(planes))).flatten(1)


class CameraNet(nn.Module):
    """For a Dict of an image `camera` [height, width, 3], a vector `speed` and a number `gear`."""

    def __init__(self, space: spaces.Dict, features_dim: int = 5) -> None:
        super().__init__()
        assert isinstance(space["gear"], spaces.Discrete)
        assert space["speed"].shape is not None
        self.features_dim = features_dim
        num_inputs = 3 + int(space["gear"].n) + space["speed"].shape[0]
        self.linear = nn.Linear(num_inputs, features_dim)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        colours = obs["camera"].mean(dim=(1, 2))
        features: Tensor = self.linear(torch.cat([colours, obs["speed"], obs["gear"]], dim=1))
        return features


class LazyNet(nn.Sequential):
    features_dim = 6

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(nn.LazyLinear(6), nn.Tanh())


class WithLayer(nn.Sequential):
    features_dim = 8

    def __init__(self, space: spaces.Box, layer: nn.Module) -> None:
        super().__init__(nn.Linear(space.shape[0], 8), layer)


def batch_norm(space: spaces.Box) -> nn.Module:
    return WithLayer(space, nn.BatchNorm1d(8))


def dropout(space: spaces.Box) -> nn.Module:
    return WithLayer(space, nn.Dropout())


def too_wide(space: spaces.Box) -> nn.Module:
    return WithLayer(space, nn.Linear(8, 9))


def misfit(space: spaces.Box) -> nn.Module:
    return WithLayer(spaces.Box(-1.0, 1.0, (5,)), nn.Tanh())


def double(space: spaces.Box) -> nn.Module:
    return WithLayer(space, nn.Tanh()).double()


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, features: Tensor) -> Tensor:
        return self._function(features)


def double_outputs(space: spaces.Box) -> nn.Module:
    return WithLayer(space, Function(Tensor.double))


def batch_mean(space: spaces.Box) -> nn.Module:
    return WithLayer(space, Function(lambda x: x - x.mean(dim=0)))


def batch_norm_without_state(space: spaces.Box) -> nn.Module:
    return WithLayer(space, nn.BatchNorm1d(8, track_running_stats=False))


def not_a_module(space: spaces.Box) -> int:
    return 3


def without_size(space: spaces.Box) -> nn.Module:
    return nn.Linear(space.shape[0], 8)


def failing(space: spaces.Box) -> nn.Module:
    raise RuntimeError("no such layer")


class SideEnv(Env[Any, Any]):
    """One bright pixel on the left or the right: the action that names its side earns 1. One step per episode."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        image = np.zeros((8, 8), np.uint8)
        row, column = self.np_random.integers(8, size=2)
        image[row, column] = 255
        self._right = int(column >= 4)
        return image, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((8, 8), np.uint8), float(action == self._right), True, False, {}


class SideControlEnv(SideEnv):
    """The same with a continuous action: the closer it is to -1 or 1 on the side of the pixel, the better."""

    action_space = spaces.Box(-1.0, 1.0, (1,))  # type: ignore[assignment]  # another kind of action

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        side = 1.0 if self._right else -1.0
        return np.zeros((8, 8), np.uint8), -abs(float(action[0]) - side), True, False, {}


for _name, _class in (("Side-v0", "SideEnv"), ("SideControl-v0", "SideControlEnv")):
    if _name not in registry:
        register(_name, f"sample_networks:{_class}")
