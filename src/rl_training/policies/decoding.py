"""Deterministic actions as plain descriptions, from which they can be computed without this package."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from rl_training.policies.base import Array, Policy
from rl_training.policies.features import Encoder
from rl_training.policies.networks.protocol import Network, Shape
from rl_training.policies.params import HostedParams


@dataclass(frozen=True, kw_only=True)
class ActionPart:
    """The rule by which some columns of a network's outputs become one part of the env's deterministic action.

    `choices`: for each number, the place of its highest score, counted from `first`. `bits`: 1 for positive outputs.
    `numbers`: outputs, or their tanh, scaled by `half_range` around `middle` and clipped to `low` and `high`.
    """

    kind: Literal["choices", "bits", "numbers"]
    outputs: slice
    shape: Shape
    """The shape of the part in the env's action."""
    dtype: np.dtype[Any]
    path: tuple[str | int, ...] = ()
    """The keys and positions that lead to the part in a nested action; empty if the action is not nested."""
    masks: slice | None = None
    """The columns of a mask of legal actions that belong to the part; none if it cannot be masked."""
    choices: tuple[int, ...] = ()
    """How many choices each number has."""
    first: Array | None = None
    squash: bool = False
    """Whether numbers are the tanh of the outputs."""
    middle: Array | None = None
    half_range: Array | None = None
    low: Array | None = None
    high: Array | None = None

    @property
    def name(self) -> str:
        """The path in dotted form, such as `arm.grip`; `action` if the action is not nested."""
        return ".".join(map(str, self.path)) or "action"


@runtime_checkable
class ExportablePolicy(Policy, Protocol):
    """A policy whose deterministic actions are decoded from the outputs of one network."""

    encoder: Encoder
    params: HostedParams
    action_parts: tuple[ActionPart, ...]

    @property
    def acting_network(self) -> Network:
        """The network from whose outputs actions are decoded."""
