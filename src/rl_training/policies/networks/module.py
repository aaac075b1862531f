"""Any `torch.nn.Module` as a network: automatic differentiation in place of hand-written gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.errors import ConfigError, describe_error
from rl_training.policies.networks.protocol import FloatArray, Network, Shape, Trace

MakeModule = Callable[[Shape, int], nn.Module]
"""Builds a module from the shape of one input and the number of outputs; it maps [batch, *shape] to [batch, out]."""

_PROBE_ROWS = 2  # BatchNorm refuses a single row


class _Graph(NamedTuple):
    """What autograd needs: the outputs with their history, and the leaves to differentiate by."""

    outputs: Tensor
    params: dict[str, Tensor]
    inputs: Tensor


class ModuleNetwork:
    """A module whose parameters live in the flat vector under `<name>.<the module's own name>`."""

    def __init__(self, name: str, make_module: MakeModule, input_shape: Shape, num_outputs: int) -> None:
        self._name, self._make_module = name, make_module
        self._input_shape, self._num_outputs = input_shape, num_outputs
        module = self._build(torch.Generator().manual_seed(0))
        self._inner_names = {f"{name}.{inner}": inner for inner, _ in module.named_parameters()}
        self.shapes: dict[str, Shape] = {
            outer: tuple(module.get_parameter(inner).shape) for outer, inner in self._inner_names.items()
        }
        self._check(module)
        self._module = module.requires_grad_(False)
        for param in self._module.parameters():
            param.data = torch.empty(0)  # every call gets the values that it uses

    def _build(self, generator: torch.Generator) -> nn.Module:
        """Build the module with initial values that are drawn from `generator` and from no global one."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            try:
                module = self._make_module(self._input_shape, self._num_outputs)
            except Exception as error:
                raise ConfigError(
                    f"the {self._name} network cannot be built for inputs {self._input_shape} and "
                    f"{self._num_outputs} outputs: {describe_error(error)}"
                ) from error
        if not isinstance(module, nn.Module):
            raise ConfigError(f"the {self._name} network must be a torch.nn.Module, not {type(module).__name__}")
        return module

    def _check(self, module: nn.Module) -> None:
        """Refuse a module whose outputs misfit, or that depends on more than its parameters and inputs."""
        who = f"the {self._name} network ({type(module).__name__})"
        if not self.shapes or any(param.dtype != torch.float32 for param in module.parameters()):
            raise ConfigError(f"{who} must have parameters, all of type float32")
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.default_generator.get_state()
            try:
                outputs = module(torch.zeros(_PROBE_ROWS, *self._input_shape))
            except Exception as error:
                text = f"{who} fails for inputs of shape {self._input_shape}: {describe_error(error)}"
                raise ConfigError(text) from error
            draws = not torch.equal(before, torch.default_generator.get_state())
        if not isinstance(outputs, Tensor) or outputs.shape != (_PROBE_ROWS, self._num_outputs):
            got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ConfigError(f"{who} must give outputs [batch, {self._num_outputs}], it gives {got} for 2 rows")
        changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, buffers[name])]
        if changed:
            raise ConfigError(
                f"{who} changes its buffer {changed[0]} while training, as BatchNorm does, which is not supported; "
                "use LayerNorm or GroupNorm"
            )
        if draws:
            raise ConfigError(f"{who} draws random numbers in its forward pass, as Dropout does: leave that out")

    def initialise(
        self, params: Mapping[str, Tensor], generator: torch.Generator, output_gain: float | None = None
    ) -> None:
        """Write the module's own initial values."""
        del output_gain
        module = self._build(generator)
        for outer, inner in self._inner_names.items():
            params[outer].copy_(module.get_parameter(inner).detach())

    def forward(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Compute outputs [batch, out] from inputs [batch, in]."""
        return self._call({inner: params[outer] for outer, inner in self._inner_names.items()}, inputs)

    def _call(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        buffers = {name: buffer.to(inputs.device) for name, buffer in self._module.named_buffers()}
        rows = inputs.reshape(-1, *self._input_shape)
        outputs: Tensor = functional_call(self._module, {**params, **buffers}, (rows,))
        return outputs

    def trace(self, params: Mapping[str, Tensor], inputs: Tensor) -> Trace:
        """Compute the outputs with their autograd history."""
        # Updates run in inference mode, whose tensors autograd cannot keep.
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {inner: params[outer].detach().requires_grad_() for outer, inner in self._inner_names.items()}
            rows = (inputs.clone() if inputs.is_inference() else inputs.detach()).requires_grad_()
            outputs = self._call(leaves, rows)
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
        """Compute the gradients in some columns of the inputs, and nothing else of the gradient."""
        del params
        graph: _Graph = trace.saved
        (gradients,) = torch.autograd.grad(graph.outputs, [graph.inputs], output_gradients)
        return gradients[:, columns]

    def forward_array(self, params: Mapping[str, FloatArray], inputs: FloatArray) -> FloatArray:
        """Compute the outputs by torch on the host's memory of the parameters."""
        with torch.inference_mode():
            own = {inner: torch.from_numpy(params[outer]) for outer, inner in self._inner_names.items()}
            return self._call(own, torch.from_numpy(np.ascontiguousarray(inputs))).numpy()


class NetworkStack:
    """Several networks on the same inputs, with outputs [stack, batch, out]."""

    def __init__(self, members: Sequence[Network]) -> None:
        self.members = list(members)
        self.shapes: dict[str, Shape] = {}
        for member in self.members:
            self.shapes |= member.shapes

    def initialise(
        self, params: Mapping[str, Tensor], generator: torch.Generator, output_gain: float | None = None
    ) -> None:
        """Write the initial values of every member, each with draws of its own."""
        for member in self.members:
            member.initialise(params, generator, output_gain)

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
        """Compute the gradients in some columns of the inputs, summed over the members."""
        parts = zip(self.members, trace.saved, output_gradients, strict=True)
        return torch.stack([member.input_gradients(params, own, outer, columns) for member, own, outer in parts]).sum(0)

    def forward_array(self, params: Mapping[str, FloatArray], inputs: FloatArray) -> FloatArray:
        """Compute the outputs of every member for acting."""
        return np.stack([member.forward_array(params, inputs) for member in self.members])
