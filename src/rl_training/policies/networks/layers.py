"""Layers of module networks: perceptrons of any activation, and their initial weights."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

Activation = Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"]

ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}


def make_hidden_layers(sizes: Sequence[int], activation: Activation, *, layer_norm: bool) -> nn.Sequential:
    """Return linear layers between these sizes, each followed by an activation; `layer_norm` normalises before it."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers.append(nn.Linear(inputs, outputs))
        if layer_norm:
            layers.append(nn.LayerNorm(outputs))
        layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def initialise_orthogonally(module: nn.Module, output_gain: float = math.sqrt(2)) -> None:
    """Write orthogonal weights and zero biases into all convolutions and linear layers.

    The gain is sqrt(2), but `output_gain` in the last layer (Engstrom et al. 2020, section 3).
    """
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, output_gain if layer is layers[-1] else math.sqrt(2))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def count_hidden_parameters(sizes: Sequence[int], *, layer_norm: bool) -> int:
    """Return how many parameters `make_hidden_layers` would give to layers between these sizes."""
    extra = 3 if layer_norm else 1
    return sum((inputs + extra) * outputs for inputs, outputs in pairwise(sizes))


def count_parameters(make_module: Callable[[], nn.Module]) -> int:
    """Return how many parameters a module has, without allocating memory for them."""
    with torch.device("meta"):
        return sum(param.numel() for param in make_module().parameters())
