"""The public import path of the experiment manager, which is defined in `runtime`."""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_attributes

if TYPE_CHECKING:
    from rl_training.runtime.manager import DefaultExperimentManager

__all__ = ["DefaultExperimentManager"]

__getattr__, __dir__ = lazy_attributes(__name__, dict.fromkeys(__all__, "rl_training.runtime.manager"))
