"""The public door: one class per algorithm."""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_attributes

if TYPE_CHECKING:
    from rl_training.api.algorithms import PPO

__all__ = ["PPO"]

__getattr__ = lazy_attributes(__name__, {"PPO": "rl_training.api.algorithms"})
