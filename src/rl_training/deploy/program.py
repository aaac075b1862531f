"""The deterministic policy of an agent as one torch module, from the user's observations to the env's actions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.errors import ExportError
from rl_training.packing import MASK_NAME, Array, PackedObservations
from rl_training.policies.decoding import ActionPart, ExportablePolicy
from rl_training.policies.distributions import ILLEGAL
from rl_training.policies.networks.protocol import ModularNetwork
from rl_training.policies.networks.spec import EncodedNetwork
from rl_training.runtime.agents import Agent


@dataclass(frozen=True)
class Input:
    """One array of the observations that an exported policy takes, [batch, *shape]."""

    name: str
    path: tuple[str | int, ...]
    """The keys and positions that lead to the array in a nested observation; empty if it is not nested."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class PolicyProgram:
    """What every format exports: inputs, network and outputs of a deterministic policy."""

    policy: ExportablePolicy
    inputs: tuple[Input, ...]
    """The parts of an observation, in the order of the encoder; the mask of legal actions is not among them."""
    mask: Input | None
    network: nn.Module
    """Maps features [batch, in] to the outputs from which actions are decoded."""
    space: PackedObservations | None
    """The space of packed observations; none if observations are plain arrays."""

    @property
    def all_inputs(self) -> tuple[Input, ...]:
        """The inputs, followed by the mask if there is one."""
        return self.inputs if self.mask is None else (*self.inputs, self.mask)

    def split(self, rows: Array) -> dict[str, Array]:
        """Return the inputs by name for observations [batch, ...] as the policy sees them."""
        if self.space is None:
            return {self.inputs[0].name: rows.astype(self.inputs[0].dtype, copy=False)}
        leaves = [each.leaf for each in self.policy.encoder.encoders]
        values = [self.space.read(rows, leaf) for leaf in leaves]
        if self.mask is not None and self.space.mask is not None:
            values.append(self.space.read(rows, self.space.mask))
        return {each.name: np.ascontiguousarray(own) for each, own in zip(self.all_inputs, values, strict=True)}

    def module(self) -> "PolicyModule":
        """Return the whole policy as a module."""
        return PolicyModule(self).eval()


def make_program(agent: Agent) -> PolicyProgram:
    """Return the program of an agent's policy; refuse one that does not describe its deterministic actions."""
    policy = agent.learner.policy
    if not isinstance(policy, ExportablePolicy) or not isinstance(policy.acting_network, ModularNetwork):
        raise ExportError(
            f"{agent.config.algo} cannot be exported: its policy does not describe its deterministic actions "
            "(ExportablePolicy in rl_training.policies.decoding)"
        )
    space = agent.observation_space if isinstance(agent.observation_space, PackedObservations) else None
    inputs = tuple(
        Input(each.leaf.name or "obs", each.leaf.path, each.leaf.shape, each.leaf.dtype)
        for each in policy.encoder.encoders
    )
    network = _first_head(policy.acting_network.to_module(policy.params.tensors))
    program = PolicyProgram(policy, inputs, _mask_of(policy, space), network.requires_grad_(False), space)
    for names in ([each.name for each in program.all_inputs], [part.name for part in policy.action_parts]):
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ExportError(f"two parts are called '{repeated}', so an export could not tell them apart: rename one")
    return program


def _mask_of(policy: ExportablePolicy, space: PackedObservations | None) -> Input | None:
    """Return the input for masks of legal actions; none if the policy does not use any."""
    used = any(part.masks is not None for part in policy.action_parts)
    if space is None or space.mask is None or not used:
        return None
    name = space.without or MASK_NAME
    return Input(name, () if space.without is None else (name,), (space.mask.size,), np.dtype(np.int8))


def _first_head(network: nn.Module) -> nn.Module:
    """Leave out further heads of a network, such as a critic behind a shared trunk: the first one acts."""
    if not isinstance(network, EncodedNetwork):
        return network
    name, head = next(iter(network.heads.items()))
    return EncodedNetwork(network.encoder, network.trunk, {name: head})


class PolicyModule(nn.Module):
    """Maps the named arrays of observations to the named parts of the env's actions; all have a batch axis."""

    def __init__(self, program: PolicyProgram) -> None:
        super().__init__()
        self._encoder, self._parts = program.policy.encoder, program.policy.action_parts
        self._names = [each.name for each in program.inputs]
        self._mask = program.mask and program.mask.name
        self.network = program.network

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the deterministic actions."""
        outputs = self.network(self._encoder.encode_parts([inputs[name] for name in self._names]))
        masks = inputs[self._mask].bool() if self._mask else None
        return {part.name: _decode(part, outputs, masks) for part in self._parts}


def _decode(part: ActionPart, outputs: Tensor, masks: Tensor | None) -> Tensor:
    """Return one part of the actions in the env's shape and type."""
    own = outputs[:, part.outputs]
    if part.kind == "choices":
        if masks is not None and part.masks is not None:
            own = torch.where(masks[:, part.masks], own, ILLEGAL)
        best = [scores.argmax(dim=1) for scores in torch.split(own, list(part.choices), dim=1)]
        found = torch.stack(best, dim=1) + torch.as_tensor(part.first)
    elif part.kind == "bits":
        found = own > 0.0
    else:
        own = torch.tanh(own) if part.squash else own
        middle, half_range, low, high = map(torch.as_tensor, (part.middle, part.half_range, part.low, part.high))
        found = torch.minimum(torch.maximum(middle + own * half_range, low), high)
    return found.to(getattr(torch, part.dtype.name)).reshape(outputs.shape[0], *part.shape)
