"""What a learner looks like to the loops that drive it."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.policies.base import Array, Policy


@dataclass(frozen=True)
class UpdateResult:
    """What one call of a learner's `update` did."""

    metrics: dict[str, int | float]
    num_gradient_steps: int


class Learner(Protocol):
    """Weights, optimizer and streams of one algorithm; `state_dict` is all it needs to go on."""

    @property
    def policy(self) -> Policy:
        """The policy as it stands, for evaluation."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes while learning."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""


class OnPolicyLearner(Learner, Protocol):
    """A learner that acts for a rollout, then learns from it once."""

    def act(self, obs: Array) -> Array:
        """Actions for observations [env, ...], in the policy's own space."""

    def to_env(self, actions: Array) -> Array:
        """What the envs receive for these actions."""

    def compute_advantages(self, rollout: RolloutBuffer, last_obs: Array) -> None:
        """Fill in values, log-probs, advantages and returns; `last_obs` [env, ...] follows the newest step."""

    def update(self, rollout: RolloutBuffer, step: int) -> UpdateResult:
        """Learn from the rollout that began at env step `step`."""


Batch = dict[str, Tensor]
