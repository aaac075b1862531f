"""The protocol of networks: functions of inputs and named parameters, with their derivatives."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

FloatArray = npt.NDArray[np.float32]
Shape = tuple[int, ...]


class Trace(NamedTuple):
    """The outputs of a forward pass, and what the network saved to differentiate the pass once."""

    outputs: Tensor
    saved: Any


class Network(Protocol):
    """A function from inputs [batch, in] to outputs [batch, out]; a stack of networks has outputs [stack, batch, out].

    It owns no parameters. They are passed to every call by name, as views of one flat vector that several networks
    may share, so the optimizer, target networks and checkpoints are the same for every kind of network.
    """

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of every parameter by name."""

    def initialise(self, params: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Write the initial values into `params`, drawn from `generator`."""

    def forward(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Compute the outputs."""

    def trace(self, params: Mapping[str, Tensor], inputs: Tensor) -> Trace:
        """Compute the outputs, and keep what one call of `backward` or `input_gradients` needs."""

    def backward(self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor) -> dict[str, Tensor]:
        """Compute the gradients of a loss for all parameters from those for the outputs."""

    def input_gradients(
        self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor, columns: slice
    ) -> Tensor:
        """Compute the gradients of a loss for these columns of the inputs, summed over a stack."""

    def forward_array(self, params: Mapping[str, FloatArray], inputs: FloatArray) -> FloatArray:
        """Compute the outputs for acting, in NumPy on the host."""


@runtime_checkable
class ModularNetwork(Network, Protocol):
    """A network that can be exported as a module."""

    def to_module(self, params: Mapping[str, Tensor]) -> nn.Module:
        """Return a module with its own copy of `params`, which maps features [batch, in] to outputs for acting."""
