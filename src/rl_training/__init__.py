"""Reinforcement-learning training with strict configs, run directories and safe checkpoints."""

from rl_training._lazy import TYPE_CHECKING, lazy_attributes

if TYPE_CHECKING:
    from rl_training.api.algorithms import DQN, PPO, SAC
    from rl_training.experiment.config import TrainConfig
    from rl_training.groups.tuning import tune

__version__ = "0.1.0"
__all__ = ["DQN", "PPO", "SAC", "TrainConfig", "__version__", "tune"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "DQN": "rl_training.api.algorithms",
        "PPO": "rl_training.api.algorithms",
        "SAC": "rl_training.api.algorithms",
        "TrainConfig": "rl_training.experiment.config",
        "tune": "rl_training.groups.tuning",
    },
)
