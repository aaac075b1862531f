"""Multi-layer perceptrons with hand-written gradients: the fast networks for flat inputs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.policies.networks.layers import make_hidden_layers
from rl_training.policies.networks.protocol import FloatArray, Shape, Trace

FastActivation = Literal["tanh", "relu"]

_FEW = 32  # with fewer columns than this, the transpose is faster on a CPU; not measured on a GPU


def affine(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `inputs @ weight + bias` of matrices or of stacks of them."""
    if torch.compiler.is_compiling():
        return inputs @ weight + bias  # the compiler fuses this with what follows; `addmm` would copy the bias first
    return torch.addmm(bias, inputs, weight) if weight.dim() == 2 else torch.baddbmm(bias, inputs, weight)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Compute `left @ right` of matrices or of stacks of them; if it has few columns, compute its transpose.

    A product with four rows takes a sixth of the time of one with four columns.
    """
    return (right.mT @ left.mT).mT if right.shape[-1] < _FEW else left @ right


def activate(activation: FastActivation, inputs: Tensor) -> Tensor:
    """Compute the activations of `inputs`, which may be overwritten."""
    if activation == "relu":
        return torch.relu_(inputs)
    if torch.compiler.is_compiling() and inputs.is_cpu:
        return 2.0 * torch.sigmoid(2.0 * inputs) - 1.0  # tanh up to 1e-7; torch's makes an update a quarter slower
    if not _is_plain(inputs):
        return torch.tanh_(inputs)
    array = inputs.numpy()
    np.tanh(array, out=array)  # takes a sixth of the time of torch's
    return inputs


def _is_plain(tensor: Tensor) -> bool:
    """Return whether NumPy may compute on the tensor's memory: torch does not differentiate, transform or trace it."""
    if not (tensor.is_cpu and torch.is_inference_mode_enabled()):
        return False
    return type(tensor) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def activation_gradients(activation: FastActivation, gradients: Tensor, outputs: Tensor) -> Tensor:
    """Turn the gradients for the outputs of an activation into those for its inputs, in place."""
    if activation == "relu":
        through: Tensor = torch.ops.aten.threshold_backward(gradients, outputs, 0.0, grad_input=gradients)
    else:
        through = torch.ops.aten.tanh_backward(gradients, outputs, grad_input=gradients)
    return through


class MLP:
    """A perceptron, or with `stack` several of the same shape on the same inputs, with one batched product per layer.

    Its parameters are named `<name>.<layer>.weight` and `.bias`. The weights of one network are [out, in] as in
    `torch.nn.Linear`, those of a stack [stack, in, out].
    """

    def __init__(
        self,
        name: str,
        sizes: Sequence[int],
        activation: FastActivation,
        stack: int | None = None,
        *,
        output_gain: float | None = None,
    ) -> None:
        """With `output_gain`, the initial weights are orthogonal; it is the gain of the last layer."""
        self.activation = activation
        self.stack = stack
        self._output_gain = output_gain
        self.layers = [(f"{name}.{index}.weight", f"{name}.{index}.bias") for index in range(len(sizes) - 1)]
        self.shapes: dict[str, Shape] = {}
        for (weight, bias), inputs, outputs in zip(self.layers, sizes[:-1], sizes[1:], strict=True):
            if stack is None:
                self.shapes |= {weight: (outputs, inputs), bias: (outputs,)}
            else:
                self.shapes |= {weight: (stack, inputs, outputs), bias: (stack, 1, outputs)}

    def initialise(self, params: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Write orthogonal weights and zero biases; without a gain, both uniform within 1 / sqrt(inputs).

        The hidden layers have the gain sqrt(2) (Engstrom et al. 2020, section 3).
        """
        for weight, bias in self.layers:
            matrix = self._matrix(params[weight])
            if self._output_gain is None:
                limit = 1.0 / math.sqrt(matrix.shape[-2])
                params[weight].uniform_(-limit, limit, generator=generator)
                params[bias].uniform_(-limit, limit, generator=generator)
                continue
            gain = self._output_gain if (weight, bias) == self.layers[-1] else math.sqrt(2)
            for member in [params[weight]] if self.stack is None else params[weight].mT:
                torch.nn.init.orthogonal_(member, gain, generator=generator)
            torch.nn.init.zeros_(params[bias])

    def forward(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Compute outputs [batch, out], or [stack, batch, out], from inputs [batch, in]."""
        return self.trace(params, inputs).outputs

    def trace(self, params: Mapping[str, Tensor], inputs: Tensor) -> Trace:
        """Compute the outputs, and keep the inputs of every layer."""
        saved = [inputs if self.stack is None else inputs.expand(self.stack, -1, -1)]
        for weight, bias in self.layers[:-1]:
            saved.append(activate(self.activation, affine(saved[-1], self._matrix(params[weight]), params[bias])))
        weight, bias = self.layers[-1]
        if self.stack is None:
            return Trace(affine(saved[-1], params[weight].t(), params[bias]), saved)
        return Trace(product(saved[-1], params[weight]) + params[bias], saved)

    def _matrix(self, weight: Tensor) -> Tensor:
        """Return a weight as [in, out], or [stack, in, out]."""
        return weight.t() if self.stack is None else weight

    def backward(self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of every parameter.

        The derivatives are written by hand, because automatic differentiation takes two to three times as long for
        small networks.
        """
        gradients: dict[str, Tensor] = {}
        for index, outer in self._layer_gradients(params, trace, output_gradients):
            weight, bias = self.layers[index]
            inputs = trace.saved[index]
            gradients[weight] = product(outer.t(), inputs) if self.stack is None else product(inputs.mT, outer)
            gradients[bias] = outer.sum(dim=-2, keepdim=self.stack is not None)
        return gradients

    def input_gradients(
        self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor, columns: slice
    ) -> Tensor:
        """Compute the gradients for some columns of the inputs only."""
        *_, (_, first) = self._layer_gradients(params, trace, output_gradients)
        matrix = self._matrix(params[self.layers[0][0]])[..., columns, :]
        gradients = product(first, matrix.mT)
        return gradients if self.stack is None else gradients.sum(dim=0)

    def _layer_gradients(
        self, params: Mapping[str, Tensor], trace: Trace, gradients: Tensor
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the index of every layer, last to first, and the gradients for its outputs before the activation."""
        for index in reversed(range(len(self.layers))):
            yield index, gradients
            if index:
                through = gradients @ self._matrix(params[self.layers[index][0]]).mT
                gradients = activation_gradients(self.activation, through, trace.saved[index])

    def forward_array(self, params: Mapping[str, FloatArray], inputs: FloatArray) -> FloatArray:
        """Compute the outputs in NumPy, whose small operations cost a tenth of torch's."""
        outputs = inputs
        for weight, bias in self.layers:
            outputs = outputs @ (params[weight].T if self.stack is None else params[weight]) + params[bias]
            if bias != self.layers[-1][1]:
                outputs = np.tanh(outputs) if self.activation == "tanh" else np.maximum(outputs, np.float32(0.0))
        return outputs

    def to_module(self, params: Mapping[str, Tensor]) -> nn.Module:
        """Return a module with its own copy of `params`; not for a stack."""
        sizes = [params[weight].shape[1] for weight, _ in self.layers]
        with torch.device("meta"):  # draws no initial weights
            hidden = make_hidden_layers(sizes, self.activation, layer_norm=False)
            module = nn.Sequential(*hidden, nn.Linear(sizes[-1], params[self.layers[-1][1]].shape[0]))
        module.to_empty(device="cpu")
        linear = [layer for layer in module if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, (weight, bias) in zip(linear, self.layers, strict=True):
                layer.weight.copy_(params[weight])
                layer.bias.copy_(params[bias])
        return module
