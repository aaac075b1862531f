"""The public classes, one per algorithm."""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_attributes

if TYPE_CHECKING:
    from rl_training.api.algorithms import DQN, PPO, SAC

__all__ = ["DQN", "PPO", "SAC"]

__getattr__, __dir__ = lazy_attributes(__name__, dict.fromkeys(__all__, "rl_training.api.algorithms"))
