"""The choice of networks for an algorithm: the fast MLP for flat features, modules for everything else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rl_training.policies.features import Encoder
from rl_training.policies.networks.encoders import (
    PROBE_ROWS,
    AnyEncoder,
    is_built_in,
    make_built_in_encoder,
    make_own_encoder,
    uses_images,
)
from rl_training.policies.networks.layers import (
    Activation,
    count_hidden_parameters,
    count_parameters,
    initialise_orthogonally,
    make_hidden_layers,
)
from rl_training.policies.networks.mlp import MLP
from rl_training.policies.networks.module import ModuleNetwork, NetworkStack, Precision
from rl_training.policies.networks.protocol import Network
from rl_training.policies.params import check_parameters_fit


@dataclass(frozen=True)
class Head:
    """The requirements of one part of a policy, such as its actor, for its network."""

    name: str
    num_outputs: int
    hidden_sizes: tuple[int, ...] | None = None
    """Hidden layers of its own; none: those of the spec, or no further ones after a shared trunk."""
    gain: float | None = None
    """Gain of the last layer if all initial weights are to be orthogonal; none: torch's own initial weights."""


@dataclass(frozen=True)
class NetworkSpec:
    """The settings that the networks of one algorithm share."""

    hidden_sizes: tuple[int, ...]
    activation: Activation
    device: torch.device
    normalize_obs: bool = False
    layer_norm: bool = False
    encoder: str = "auto"
    """A built-in encoder, or `package.module:Name` of another one."""
    encoder_kwargs: Mapping[str, Any] = field(default_factory=dict)
    actor_hidden_sizes: tuple[int, ...] | None = None
    critic_hidden_sizes: tuple[int, ...] | None = None
    shared_trunk: bool | None = None
    """Whether `build_pair` shares encoder and hidden layers; none: if the encoder looks at images."""
    precision: Precision = "float32"

    @property
    def widest_layer(self) -> int:
        """The size of the largest hidden layer, 1 if there is none."""
        sizes = (*self.hidden_sizes, *(self.actor_hidden_sizes or ()), *(self.critic_hidden_sizes or ()))
        return max(sizes, default=1)

    def make_encoder(self, encoder: Encoder) -> AnyEncoder:
        """Make the encoder's module with its own initial weights, if it fits into memory."""
        if not is_built_in(self.encoder):
            return make_own_encoder(self.encoder, self.encoder_kwargs, encoder)
        count = count_parameters(lambda: make_built_in_encoder(self.encoder, encoder))
        check_parameters_fit(count, self.device)
        return make_built_in_encoder(self.encoder, encoder)

    def count_encoder_products(self, encoder: Encoder) -> int:
        """Return how many multiplications the encoder takes per observation; 0 if it only flattens observations."""
        with torch.random.fork_rng(devices=[]):
            module = self.make_encoder(encoder)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(torch.zeros(PROBE_ROWS, encoder.size))
        return int(counter.get_total_flops()) // (2 * PROBE_ROWS)  # an addition is counted with every multiplication

    def build(self, encoder: Encoder, head: Head) -> Network:
        """Build a network for rows of features."""
        fast = self._fast_network(encoder, head, num_actions=0, stack=None)
        return fast or self._module_network(head.name, _Recipe(self, encoder, (head,)))

    def build_stack(self, encoder: Encoder, head: Head, count: int, *, num_actions: int) -> Network:
        """Build `count` networks as one. After the features, they see `num_actions` columns that bypass the encoder."""
        fast = self._fast_network(encoder, head, num_actions, stack=count)
        recipe = _Recipe(self, encoder, (head,), num_actions)
        names = [f"{head.name}.{index}" for index in range(count)]
        return fast or NetworkStack([self._module_network(name, recipe) for name in names])

    def build_pair(self, encoder: Encoder, first: Head, second: Head) -> tuple[Network, Network | None]:
        """Build two networks, or one that has the outputs of both side by side, behind a shared trunk."""
        shared = uses_images(self.encoder, encoder) if self.shared_trunk is None else self.shared_trunk
        if not shared:
            return self.build(encoder, first), self.build(encoder, second)
        return self._module_network("shared", _Recipe(self, encoder, (first, second), trunk=self.hidden_sizes)), None

    def _fast_network(self, encoder: Encoder, head: Head, num_actions: int, stack: int | None) -> Network | None:
        """Return the hand-written MLP if it can do what the spec asks for."""
        flat = self.encoder == "mlp" or (self.encoder == "auto" and not uses_images("auto", encoder))
        plain = flat and not self.layer_norm and self.precision == "float32"
        if not plain or not (self.activation == "tanh" or self.activation == "relu"):
            return None
        sizes = [encoder.size + num_actions, *self.sizes_of(head), head.num_outputs]
        return MLP(head.name, sizes, self.activation, stack, output_gain=head.gain)

    def sizes_of(self, head: Head) -> tuple[int, ...]:
        """Return the hidden sizes of a network that has this head only."""
        return self.hidden_sizes if head.hidden_sizes is None else head.hidden_sizes

    def _module_network(self, name: str, recipe: "_Recipe") -> Network:
        return ModuleNetwork(name, recipe, recipe.encoder.size, self.precision)


@dataclass(frozen=True)
class _Recipe:
    """Makes the module of a network; it can be pickled, so that another process can compile the updates."""

    spec: NetworkSpec
    encoder: Encoder
    heads: tuple[Head, ...]
    num_actions: int = 0
    trunk: tuple[int, ...] | None = None
    """Hidden layers that several heads share; none: a single head with all hidden layers."""

    def __call__(self) -> "EncodedNetwork":
        """Make the module with initial weights from torch's global generator."""
        encoder = self.spec.make_encoder(self.encoder)
        if self._orthogonal and is_built_in(self.spec.encoder):
            initialise_orthogonally(encoder)
        self._check_size(encoder)
        network = self._assemble(encoder)
        if self._orthogonal:
            initialise_orthogonally(network.trunk)
        for head in self.heads:
            if head.gain is not None:
                initialise_orthogonally(network.heads[head.name], head.gain)
        return network

    @property
    def _orthogonal(self) -> bool:
        return self.heads[0].gain is not None

    def _check_size(self, encoder: AnyEncoder) -> None:
        """Refuse layers that do not fit into memory, before they are made."""
        count = sum(param.numel() for param in encoder.parameters())
        sizes = self._trunk_sizes(encoder)
        for layers in [sizes, *([*self._head_sizes(head, sizes[-1]), head.num_outputs] for head in self.heads)]:
            count += count_hidden_parameters(layers, layer_norm=self.spec.layer_norm)
        check_parameters_fit(count, self.spec.device)

    def _assemble(self, encoder: AnyEncoder) -> "EncodedNetwork":
        sizes = self._trunk_sizes(encoder)
        heads = {head.name: self._make_head(head, sizes[-1]) for head in self.heads}
        return EncodedNetwork(encoder, self._hidden_layers(sizes), heads)

    def _make_head(self, head: Head, num_inputs: int) -> nn.Sequential:
        sizes = self._head_sizes(head, num_inputs)
        return nn.Sequential(*self._hidden_layers(sizes), nn.Linear(sizes[-1], head.num_outputs))

    def _trunk_sizes(self, encoder: AnyEncoder) -> list[int]:
        return [encoder.features_dim + self.num_actions, *(self.trunk or ())]

    def _head_sizes(self, head: Head, num_inputs: int) -> list[int]:
        hidden = self.spec.sizes_of(head) if self.trunk is None else head.hidden_sizes or ()
        return [num_inputs, *hidden]

    def _hidden_layers(self, sizes: Sequence[int]) -> nn.Sequential:
        return make_hidden_layers(sizes, self.spec.activation, layer_norm=self.spec.layer_norm)


class EncodedNetwork(nn.Module):
    """An encoder, hidden layers behind it, and heads whose outputs are put side by side."""

    def __init__(self, encoder: AnyEncoder, trunk: nn.Sequential, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder, self.trunk, self.heads = encoder, trunk, nn.ModuleDict(heads)

    def forward(self, features: Tensor, actions: Tensor | None = None) -> Tensor:
        """Compute outputs [batch, out]; actions [batch, any] join after the encoder."""
        encoded = self.encoder(features)
        hidden = self.trunk(encoded if actions is None or not actions.shape[1] else torch.cat([encoded, actions], 1))
        return torch.cat([head(hidden) for head in self.heads.values()], dim=1)
