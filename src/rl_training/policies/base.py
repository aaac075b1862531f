"""The output of a policy, and the protocol of policies that choose env actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[Any]
Streams = Sequence[np.random.Generator]


@dataclass(frozen=True)
class PolicyOutput:
    """A batch of actions and the policy's numbers [batch] for each of them; `state` is for recurrent policies."""

    actions: Tensor
    logprobs: Tensor
    values: Tensor
    entropy: Tensor
    state: Tensor | None = None


class Policy(Protocol):
    """Chooses env actions for a batch of observations."""

    def predict(self, obs: Array, *, deterministic: bool = True, streams: Streams | None = None) -> Array:
        """Return env actions [batch, ...] for observations [batch, ...].

        Actions that are not deterministic are drawn from `streams`, one per row, or from the policy's own stream.
        """

    def to_env(self, actions: Array) -> Array:
        """Return what the envs receive for actions of the policy's own space."""
