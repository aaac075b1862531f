"""Any `torch.nn.Module` as a network: automatic differentiation in place of hand-written gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.policies.networks.protocol import FloatArray, Network, Shape, Trace

Precision = Literal["float32", "bfloat16"]

MakeModule = Callable[[], nn.Module]
"""Makes a module that maps features [batch, in] and actions [batch, any] to outputs [batch, out]."""


class _Graph(NamedTuple):
    """What autograd needs: the outputs with their history, and the tensors to compute gradients for."""

    outputs: Tensor
    params: dict[str, Tensor]
    inputs: tuple[Tensor, Tensor]


class _Place(NamedTuple):
    """The place where a layer keeps a parameter or a buffer."""

    values: dict[str, Any]
    name: str
    own: Tensor
    path: str
    """The name of the tensor in the whole module; the first one, if several layers share it."""


def _find_places(module: nn.Module) -> list[_Place]:
    """Return the places of all parameters and buffers of a module."""
    paths = {id(tensor): path for path, tensor in (*module.named_parameters(), *module.named_buffers())}
    return [
        _Place(values, name, tensor, paths[id(tensor)])
        for layer in module.modules()
        for values in (layer._parameters, layer._buffers)
        for name, tensor in values.items()
        if tensor is not None
    ]


class ModuleNetwork:
    """A module whose parameters live in the flat vector under `<name>.<the module's own name>`.

    The first `num_features` columns of its inputs are features; those that follow, if any, are actions. With precision
    `bfloat16`, products for learning are computed in bfloat16; parameters, outputs, gradients and acting stay float32.
    """

    def __init__(self, name: str, make_module: MakeModule, num_features: int, precision: Precision = "float32") -> None:
        self._make_module, self._num_features, self._precision = make_module, num_features, precision
        module = self._build(torch.Generator().manual_seed(0))
        self._inner_names = {f"{name}.{inner}": inner for inner, _ in module.named_parameters()}
        self.shapes: dict[str, Shape] = {
            outer: tuple(module.get_parameter(inner).shape) for outer, inner in self._inner_names.items()
        }
        self._module = module.requires_grad_(False)
        for param in self._module.parameters():
            param.data = torch.empty(0)  # the values are passed to every call
        self._places = _find_places(module)
        self._buffers = dict(module.named_buffers())

    def _build(self, generator: torch.Generator) -> nn.Module:
        """Build the module with initial values that are drawn from `generator` and from no global one."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            return self._make_module()

    def initialise(self, params: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Write the module's own initial values."""
        module = self._build(generator)
        for outer, inner in self._inner_names.items():
            params[outer].copy_(module.get_parameter(inner).detach())

    def forward(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Compute outputs [batch, out] from inputs [batch, in]."""
        return self._learn({inner: params[outer] for outer, inner in self._inner_names.items()}, self._split(inputs))

    def _learn(self, params: Mapping[str, Tensor], inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Compute outputs for learning: products in the chosen precision, the outputs themselves in float32."""
        if self._precision == "float32":
            return self._call(params, inputs)
        # A cache of casts would save nothing, because a call usually uses each parameter once.
        with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16, cache_enabled=False):
            return self._call(params, inputs).float()

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs[:, : self._num_features], inputs[:, self._num_features :]

    def _call(self, params: Mapping[str, Tensor], inputs: tuple[Tensor, Tensor]) -> Tensor:
        # Like `torch.func.functional_call`, which takes 0.2 ms more because it searches the whole module in every call.
        values = {**params, **{path: buffer.to(inputs[0].device) for path, buffer in self._buffers.items()}}
        try:
            for place in self._places:
                place.values[place.name] = values[place.path]
            outputs: Tensor = self._module(*inputs)
        finally:
            for place in self._places:
                place.values[place.name] = place.own
        return outputs

    def trace(self, params: Mapping[str, Tensor], inputs: Tensor) -> Trace:
        """Compute the outputs with their autograd history."""
        # Updates run in inference mode, but autograd cannot save tensors that were made in it.
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {inner: params[outer].detach().requires_grad_() for outer, inner in self._inner_names.items()}
            features, actions = self._split(inputs.clone() if inputs.is_inference() else inputs.detach())
            rows = features.requires_grad_(), actions.requires_grad_()
            outputs = self._learn(leaves, rows)
        return Trace(outputs.detach(), _Graph(outputs, leaves, rows))

    def backward(self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of every parameter; one that the outputs do not depend on has gradient zero."""
        del params
        graph: _Graph = trace.saved
        found = torch.autograd.grad(
            graph.outputs, list(graph.params.values()), output_gradients, allow_unused=True, materialize_grads=True
        )
        return dict(zip(self._inner_names, found, strict=True))

    def input_gradients(
        self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor, columns: slice
    ) -> Tensor:
        """Compute the gradients for some columns of the inputs only."""
        del params
        graph: _Graph = trace.saved
        first, last, _ = columns.indices(sum(part.shape[1] for part in graph.inputs))
        # Gradients for actions need no backward pass through the encoder.
        skipped = self._num_features if first >= self._num_features else 0
        wanted = graph.inputs[1:] if skipped else graph.inputs
        found = torch.autograd.grad(graph.outputs, wanted, output_gradients, allow_unused=True, materialize_grads=True)
        return torch.cat(found, dim=1)[:, first - skipped : last - skipped]

    def forward_array(self, params: Mapping[str, FloatArray], inputs: FloatArray) -> FloatArray:
        """Compute the outputs with torch on the host, from the parameters in its memory."""
        with torch.inference_mode():
            own = {inner: torch.from_numpy(params[outer]) for outer, inner in self._inner_names.items()}
            return self._call(own, self._split(torch.from_numpy(np.ascontiguousarray(inputs)))).numpy()

    def to_module(self, params: Mapping[str, Tensor]) -> nn.Module:
        """Return a module with its own copy of `params`; acting needs no actions as inputs."""
        module = self._build(torch.Generator().manual_seed(0))
        with torch.no_grad():
            for outer, inner in self._inner_names.items():
                module.get_parameter(inner).copy_(params[outer])
        return module


class NetworkStack:
    """Several networks on the same inputs, with outputs [stack, batch, out]."""

    def __init__(self, members: Sequence[Network]) -> None:
        self.members = list(members)
        self.shapes: dict[str, Shape] = {}
        for member in self.members:
            self.shapes |= member.shapes

    def initialise(self, params: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Write the initial values of every member, each drawn separately."""
        for member in self.members:
            member.initialise(params, generator)

    def forward(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Compute outputs [stack, batch, out] from inputs [batch, in]."""
        return torch.stack([member.forward(params, inputs) for member in self.members])

    def trace(self, params: Mapping[str, Tensor], inputs: Tensor) -> Trace:
        """Compute the outputs, and keep the trace of every member."""
        traces = [member.trace(params, inputs) for member in self.members]
        return Trace(torch.stack([trace.outputs for trace in traces]), traces)

    def backward(self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of every parameter of every member."""
        gradients: dict[str, Tensor] = {}
        for member, own, outer in zip(self.members, trace.saved, output_gradients, strict=True):
            gradients |= member.backward(params, own, outer)
        return gradients

    def input_gradients(
        self, params: Mapping[str, Tensor], trace: Trace, output_gradients: Tensor, columns: slice
    ) -> Tensor:
        """Compute the gradients for some columns of the inputs, summed over the members."""
        parts = zip(self.members, trace.saved, output_gradients, strict=True)
        return torch.stack([member.input_gradients(params, own, outer, columns) for member, own, outer in parts]).sum(0)

    def forward_array(self, params: Mapping[str, FloatArray], inputs: FloatArray) -> FloatArray:
        """Compute the outputs of every member for acting."""
        return np.stack([member.forward_array(params, inputs) for member in self.members])
