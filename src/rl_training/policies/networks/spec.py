"""Which networks an algorithm uses: the fast MLP, or a module that the config names."""

from dataclasses import dataclass

import torch

from rl_training.plugins import import_object
from rl_training.policies.networks.mlp import MLP, Activation
from rl_training.policies.networks.module import ModuleNetwork, NetworkStack
from rl_training.policies.networks.protocol import Network, Shape


@dataclass(frozen=True)
class NetworkSpec:
    """What the networks of one algorithm have in common."""

    hidden_sizes: tuple[int, ...]
    activation: Activation
    device: torch.device
    normalize_obs: bool = False
    module: str | None = None
    """`package.module:Name` of the function or class that makes every network; none: MLPs with `hidden_sizes`."""

    def build(self, name: str, input_shape: Shape, num_outputs: int) -> Network:
        """Build a network whose parameters are named `<name>...`, for inputs that are rows of this shape."""
        if self.module is None:
            return MLP(name, self._sizes(input_shape, num_outputs), self.activation)
        return self._module_network(name, input_shape, num_outputs)

    def build_stack(self, name: str, input_shape: Shape, num_outputs: int, count: int) -> Network:
        """Build `count` networks that see the same inputs, as one."""
        if self.module is None:
            return MLP(name, self._sizes(input_shape, num_outputs), self.activation, stack=count)
        return NetworkStack(
            [self._module_network(f"{name}.{index}", input_shape, num_outputs) for index in range(count)]
        )

    def _sizes(self, input_shape: Shape, num_outputs: int) -> list[int]:
        return [torch.Size(input_shape).numel(), *self.hidden_sizes, num_outputs]

    def _module_network(self, name: str, input_shape: Shape, num_outputs: int) -> Network:
        make_module = import_object(self.module or "", "algo_kwargs.network")
        return ModuleNetwork(name, make_module, input_shape, num_outputs)
