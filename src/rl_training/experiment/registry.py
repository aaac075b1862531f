"""The public import path of the registry of algorithms, which is defined in `runtime`."""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_attributes

if TYPE_CHECKING:
    from rl_training.runtime.registry import AlgorithmSpec, get_algorithm_spec, list_algorithm_specs

__all__ = ["AlgorithmSpec", "get_algorithm_spec", "list_algorithm_specs"]

__getattr__, __dir__ = lazy_attributes(__name__, dict.fromkeys(__all__, "rl_training.runtime.registry"))
