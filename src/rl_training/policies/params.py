"""All parameters of a policy in one flat vector; layers are views of it.

One vector makes clipping, Adam and averaging one call each. Torch trains it on its device, NumPy acts with it on the
host; on the CPU both use the same memory.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.memory import check_memory
from rl_training.policies.features import Encoder
from rl_training.policies.networks.protocol import FloatArray, Network, Shape

_ALIGNMENT = 16  # float32 values in 64 bytes; alignment decides which kernel runs, and so the last bits of its result
_COPIES = 6  # weights, gradient, two moments, a target or the values to start from, and space to compute them in


class FlatLayout:
    """The positions of named arrays in the flat vector; each array is padded to 64 bytes."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = dict(shapes)
        self.chunks: list[int] = []
        """Sizes of the arrays, each followed by the size of its padding."""
        for shape in self.shapes.values():
            size = math.prod(shape)
            self.chunks += [size, -size % _ALIGNMENT]
        self.size = sum(self.chunks)

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the named views of `flat`."""
        chunks = torch.split(flat, self.chunks)[::2]
        return {name: chunk.view(shape) for chunk, (name, shape) in zip(chunks, self.shapes.items(), strict=True)}

    def arrays(self, flat: FloatArray) -> dict[str, FloatArray]:
        """Return the named views of a NumPy vector."""
        chunks = np.split(flat, np.cumsum(self.chunks)[:-1])[::2]
        return {name: chunk.reshape(shape) for chunk, (name, shape) in zip(chunks, self.shapes.items(), strict=True)}


class HostedParams:
    """One flat vector of named parameters, and the host's view of it."""

    def __init__(self, shapes: Mapping[str, Shape], device: torch.device) -> None:
        self.layout = FlatLayout(shapes)
        self.flat = torch.zeros(self.layout.size, device=device)
        self.tensors = self.layout.tensors(self.flat)
        """The named views of the flat vector."""
        self._host = self.flat if device.type == "cpu" else self.flat.cpu()
        self.arrays: dict[str, FloatArray] = self.layout.arrays(self._host.numpy())

    def twin(self) -> "HostedParams":
        """Return a copy with the same names and values in its own memory."""
        twin = HostedParams(self.layout.shapes, self.flat.device)
        twin.set(self.flat)
        return twin

    def initialise(self, networks: Iterable[Network | None], generator: torch.Generator) -> None:
        """Write the initial values of some networks, and zeros elsewhere.

        `generator` is on the CPU, so that every device starts with the same values.
        """
        start = torch.zeros(self.layout.size)
        for network in networks:
            if network is not None:
                network.initialise(self.layout.tensors(start), generator)
        self.set(start)

    def set(self, values: Tensor) -> None:
        """Take over a whole flat vector, which may lie on another device."""
        with torch.no_grad():
            self.flat.copy_(values)
        self.sync_host()

    def sync_host(self) -> None:
        """Copy the newest parameters to the host, where policies act; on the CPU there is nothing to copy."""
        if self._host is not self.flat:
            self._host.copy_(self.flat)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of every parameter by name."""
        return {name: param.detach().cpu().clone() for name, param in self.tensors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the parameters of `state`."""
        own = {name: tuple(shape) for name, shape in self.layout.shapes.items()}
        given = {name: tuple(param.shape) for name, param in state.items()}
        if own != given:
            raise ValueError(f"parameters of shapes {given} do not fit {own}")
        with torch.no_grad():
            for name, param in self.tensors.items():
                param.copy_(state[name])
        self.sync_host()


def check_parameters_fit(num_parameters: int, device: torch.device) -> None:
    """Refuse a network whose parameters do not fit into memory with all that training adds."""
    check_memory(
        (_COPIES if device.type == "cpu" else 2) * 4 * num_parameters,
        f"lower algo_kwargs.hidden_sizes (a network has {num_parameters:,} parameters)",
    )


def make_trained_params(shapes: Mapping[str, Shape], device: torch.device) -> HostedParams:
    """Make the parameters of a network that is to be trained, if they fit into memory with everything training adds."""
    check_parameters_fit(sum(math.prod(shape) for shape in shapes.values()), device)
    return HostedParams(shapes, device)


def pack_policy(params: HostedParams, encoder: Encoder) -> dict[str, Any]:
    """Return what a policy's actions depend on: named parameters and the normalisation of observations."""
    return {"params": params.state_dict(), "normalizer": encoder.normalizer.state_dict()}


def unpack_policy(state: dict[str, Any], params: HostedParams, encoder: Encoder) -> None:
    """Take over what `pack_policy` returned."""
    params.load_state_dict(state["params"])
    encoder.normalizer.load_state_dict(state["normalizer"])
