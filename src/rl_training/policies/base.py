"""What a policy gives back, and what acting with one looks like from outside."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PolicyOutput:
    """A batch of actions as the policy sees them; [batch] but for the actions, `state` for recurrent policies."""

    actions: Tensor
    logprobs: Tensor
    values: Tensor
    entropy: Tensor
    state: Tensor | None = None


class Policy(Protocol):
    """Chooses env actions for a batch of observations."""

    def predict(self, obs: Array, *, deterministic: bool = True) -> Array:
        """Env actions [batch, ...] for observations [batch, ...]."""

    def to_env(self, actions: Array) -> Array:
        """What the envs receive for actions of the policy's own space."""
