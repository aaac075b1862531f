"""Networks as a user would write them, named in configs as `sample_networks:Name`."""

from typing import Any

import numpy as np
import torch
from gymnasium import Env, register, registry, spaces
from torch import Tensor, nn


class TanhNet(nn.Sequential):
    """What `hidden_sizes: [32], activation: tanh` gives."""

    activation: type[nn.Module] = nn.Tanh

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__(nn.Linear(input_shape[0], 32), self.activation(), nn.Linear(32, num_outputs))


class ReluNet(TanhNet):
    """What `hidden_sizes: [32], activation: relu` gives."""

    activation = nn.ReLU


class SmallCNN(nn.Module):
    """For images of any size; the grid of positions is a buffer that never changes."""

    grid: Tensor

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, kernel_size=3, stride=2, padding=1)
        self.norm = nn.GroupNorm(1, 4)
        rows = torch.linspace(-1.0, 1.0, input_shape[1]).expand(1, 1, input_shape[0], -1)
        self.register_buffer("grid", rows.contiguous())
        with torch.no_grad():
            size = self._features(torch.zeros(1, *input_shape)).shape[1]
        self.head = nn.Linear(size, num_outputs)

    def _features(self, images: Tensor) -> Tensor:
        planes = torch.cat([images.unsqueeze(1), self.grid.expand(len(images), -1, -1, -1)], dim=1)
        return torch.relu(self.norm(self.convolution(planes))).flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self._features(images))
        return outputs


def with_layer(layer: nn.Module, shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), layer, nn.Linear(8, outputs))


def batch_norm(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return with_layer(nn.BatchNorm1d(8), shape, outputs)


def dropout(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return with_layer(nn.Dropout(), shape, outputs)


def too_wide(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(shape[0], outputs + 1)


def misfit(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(shape[0] + 1, outputs)


def not_a_module(shape: tuple[int, ...], outputs: int) -> int:
    return outputs


def frozen(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Flatten()


def failing(shape: tuple[int, ...], outputs: int) -> nn.Module:
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


if "Side-v0" not in registry:
    register("Side-v0", "sample_networks:SideEnv")
