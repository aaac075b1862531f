"""The experiment manager: creates a trainer from a config or from a checkpoint."""

from collections.abc import Callable, Iterable
from pathlib import Path

from rl_training.errors import TrainingStateError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.sources import Layer
from rl_training.runtime.callbacks import CallbackList, Listener
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.runtime.workflows import budget_layer, prepare_resume


class PreparedTrainer:
    """A run that is set up. It trains only once, because a second call would silently start over."""

    def __init__(self, run: Callable[[], TrainResult]) -> None:
        self._run = run
        self._started = False

    def train(self) -> TrainResult:
        """Train to the end."""
        if self._started:
            raise TrainingStateError(
                "this trainer has already trained: resume its run directory to continue, or set up a new trainer"
            )
        self._started = True
        return self._run()


class DefaultExperimentManager:
    """Sets up new runs and resumes old ones, for every registered algorithm."""

    def setup(self, config: TrainConfig, callbacks: Iterable[Listener] | None = None) -> Trainer:
        """Return a trainer for a new run; refuse a config that cannot train."""
        spec = get_algorithm_spec(config.algo)
        params = spec.resolve_params_fn(config)
        listeners = CallbackList(callbacks).callbacks
        return PreparedTrainer(lambda: spec.train_fn(config, callbacks=listeners, params=params))

    def resume(
        self,
        checkpoint: Path | str,
        total_timesteps: int | None = None,
        callbacks: Iterable[Listener] | None = None,
        *,
        changes: Layer | None = None,
        force: bool = False,
    ) -> Trainer:
        """Return a trainer that continues a run directory in place, or a checkpoint file in a new run directory.

        `changes` that affect the course of the run are refused unless `force` is true.
        """
        layers = [*([changes] if changes else []), budget_layer(total_timesteps)]
        continuation = prepare_resume(checkpoint, layers, force=force)
        listeners = CallbackList(callbacks).callbacks
        return PreparedTrainer(lambda: continuation.train(callbacks=listeners))
