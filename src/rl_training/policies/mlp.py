"""Multi-layer perceptrons over named parameters: their shapes, their start, and the same pass in torch and NumPy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rl_training.policies.flat import FloatArray, Shape

Activation = Literal["tanh", "relu"]


@dataclass(frozen=True)
class NetworkSpec:
    """What the networks of one algorithm have in common."""

    hidden_sizes: tuple[int, ...]
    activation: Activation
    device: torch.device
    normalize_obs: bool = False


class MLP:
    """One network's place among named parameters: `<name>.<layer>.weight` and `.bias`."""

    def __init__(self, name: str, sizes: Sequence[int], activation: Activation) -> None:
        self.activation = activation
        self.layers = [(f"{name}.{index}.weight", f"{name}.{index}.bias") for index in range(len(sizes) - 1)]
        self.shapes: dict[str, Shape] = {}
        for (weight, bias), inputs, outputs in zip(self.layers, sizes[:-1], sizes[1:], strict=True):
            self.shapes |= {weight: (outputs, inputs), bias: (outputs,)}

    def initialise(self, params: Mapping[str, Tensor], output_gain: float, generator: torch.Generator) -> None:
        """Orthogonal weights, gain sqrt 2 in the hidden layers, zero biases (Engstrom et al. 2020, section 3)."""
        for weight, bias in self.layers:
            gain = output_gain if (weight, bias) == self.layers[-1] else math.sqrt(2)
            torch.nn.init.orthogonal_(params[weight], gain, generator=generator)
            torch.nn.init.zeros_(params[bias])

    def initialise_uniform(self, params: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Weights and biases uniform within 1 / sqrt(inputs), torch's own default for linear layers."""
        for weight, bias in self.layers:
            limit = 1.0 / math.sqrt(params[weight].shape[1])
            params[weight].uniform_(-limit, limit, generator=generator)
            params[bias].uniform_(-limit, limit, generator=generator)

    def forward(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Outputs [batch, out] of features [batch, in]."""
        activate = torch.tanh if self.activation == "tanh" else torch.relu
        for weight, bias in self.layers[:-1]:
            features = activate(functional.linear(features, params[weight], params[bias]))
        weight, bias = self.layers[-1]
        return functional.linear(features, params[weight], params[bias])

    def forward_array(self, params: Mapping[str, FloatArray], features: FloatArray) -> FloatArray:
        """The same pass in NumPy, whose small operations cost a tenth of torch's."""
        for weight, bias in self.layers[:-1]:
            features = features @ params[weight].T + params[bias]
            features = np.tanh(features) if self.activation == "tanh" else np.maximum(features, np.float32(0.0))
        weight, bias = self.layers[-1]
        outputs: FloatArray = features @ params[weight].T + params[bias]
        return outputs
