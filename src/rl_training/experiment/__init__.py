"""A run on disk: its config, directory, checkpoints and metrics, and the manager that starts and resumes it."""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_attributes

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.manager import DefaultExperimentManager
    from rl_training.runtime.registry import AlgorithmSpec, get_algorithm_spec

__all__ = ["AlgorithmSpec", "DefaultExperimentManager", "TrainConfig", "get_algorithm_spec"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "AlgorithmSpec": "rl_training.runtime.registry",
        "DefaultExperimentManager": "rl_training.runtime.manager",
        "TrainConfig": "rl_training.experiment.config",
        "get_algorithm_spec": "rl_training.runtime.registry",
    },
)
