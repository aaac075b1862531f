"""Multi-layer perceptrons over named parameters: their shapes, their start, and the same pass in torch and NumPy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.policies.flat import FloatArray, Shape

Activation = Literal["tanh", "relu"]
Trace = list[Tensor]
"""What a pass leaves behind for the way back: the features, the outputs of every hidden layer, the outputs."""

_FEW = 32  # columns, below which the transpose is faster on a CPU; never tried on a GPU


def affine(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`inputs @ weight + bias`, of matrices or of stacks of them."""
    if torch.compiler.is_compiling():
        return inputs @ weight + bias  # fused with what follows, where one call for both would copy the bias first
    return torch.addmm(bias, inputs, weight) if weight.dim() == 2 else torch.baddbmm(bias, inputs, weight)


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`, of matrices or of stacks of them; worked out as its transpose where it has few columns.

    With four rows it takes a sixth of the time that it takes with four columns.
    """
    return (right.mT @ left.mT).mT if right.shape[-1] < _FEW else left @ right


def activate(activation: Activation, inputs: Tensor) -> Tensor:
    """The activations of `inputs`, which may be overwritten."""
    if activation == "relu":
        return torch.relu_(inputs)
    if not inputs.is_cpu:
        return torch.tanh_(inputs)
    if torch.compiler.is_compiling():
        return 2.0 * torch.sigmoid(2.0 * inputs) - 1.0  # tanh to 1e-7; with its own, an update takes a quarter longer
    array = inputs.numpy()
    np.tanh(array, out=array)  # takes a sixth of the time of torch's
    return inputs


def through_activation(activation: Activation, slopes: Tensor, outputs: Tensor) -> Tensor:
    """Slopes in the inputs of an activation, from those in its `outputs`, in their memory."""
    if activation == "relu":
        through: Tensor = torch.ops.aten.threshold_backward(slopes, outputs, 0.0, grad_input=slopes)
    else:
        through = torch.ops.aten.tanh_backward(slopes, outputs, grad_input=slopes)
    return through


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
        return self.trace(params, features)[-1]

    def trace(self, params: Mapping[str, Tensor], features: Tensor) -> Trace:
        """The same pass with all that `backward` needs."""
        trace = [features]
        for weight, bias in self.layers:
            outputs = affine(trace[-1], params[weight].t(), params[bias])
            last = (weight, bias) == self.layers[-1]
            trace.append(outputs if last else activate(self.activation, outputs))
        return trace

    def backward(self, params: Mapping[str, Tensor], trace: Trace, slopes: Tensor) -> dict[str, Tensor]:
        """The gradient of every parameter, from the slopes of a loss in the outputs.

        Written out, because it takes a quarter of the time that automatic differentiation does for small networks.
        """
        gradients: dict[str, Tensor] = {}
        for index in reversed(range(len(self.layers))):
            weight, bias = self.layers[index]
            gradients[weight], gradients[bias] = product(slopes.t(), trace[index]), slopes.sum(dim=0)
            if index:
                slopes = through_activation(self.activation, slopes @ params[weight], trace[index])
        return gradients

    def forward_array(self, params: Mapping[str, FloatArray], features: FloatArray) -> FloatArray:
        """The same pass in NumPy, whose small operations cost a tenth of torch's."""
        for weight, bias in self.layers[:-1]:
            features = features @ params[weight].T + params[bias]
            features = np.tanh(features) if self.activation == "tanh" else np.maximum(features, np.float32(0.0))
        weight, bias = self.layers[-1]
        outputs: FloatArray = features @ params[weight].T + params[bias]
        return outputs
