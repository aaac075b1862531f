"""The classes `PPO`, `DQN` and `SAC`: configure, learn, predict, evaluate, save and load."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from rl_training.deploy.export import Export, FormatName, export_agent
from rl_training.errors import ConfigError, TrainingStateError
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    open_checkpoint,
    open_without_experience,
    save_checkpoint,
    with_experience,
)
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.sources import Layer, find_preset, read_yaml, resolve_config
from rl_training.experiment.validation import nearest_name
from rl_training.plugins import object_path
from rl_training.runtime.agents import Agent, build_agent, with_spaces
from rl_training.runtime.callbacks import Callback, Listener
from rl_training.runtime.manager import DefaultExperimentManager
from rl_training.runtime.registry import AlgorithmSpec, get_algorithm_spec
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.types import MetricDict
from rl_training.runtime.workflows import Fork, budget_layer, checkpoint_config, continued_config


class _ResultCollector(Callback):
    """A callback that collects the result of a run, even if the run fails or is interrupted."""

    def __init__(self, results: list[TrainResult]) -> None:
        self._results = results

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Store the result."""
        del trainer
        self._results.append(result)


class Algorithm:
    """The methods that all algorithms share; use one of the subclasses."""

    algo: ClassVar[str]

    def __init__(self, config: TrainConfig) -> None:
        if config.algo != self.algo:
            raise ConfigError(f"{type(self).__name__} cannot train algo={config.algo!r}")
        self.config = config
        self._spec: AlgorithmSpec = get_algorithm_spec(self.algo)
        self._spec.resolve_params_fn(config)
        self._state: CheckpointState | None = None
        self._loaded_from = Path()
        self._agent: Agent | None = None

    @classmethod
    def for_env(cls, env_id: str, **options: Any) -> Self:
        """Create a model for an environment from its shipped preset, or from the defaults if there is none.

        `options` replace values of the preset. They are fields of `TrainConfig` or parameters of the algorithm.
        """
        known = {*TrainConfig.model_fields, *get_algorithm_spec(cls.algo).params_model.model_fields}
        for name in options.keys() - known:
            nearest = nearest_name(name, known)
            raise ConfigError(f"unknown option '{name}'" + (f"; did you mean '{nearest}'?" if nearest else ""))
        own = {name: value for name, value in options.items() if name in TrainConfig.model_fields}
        params = {name: value for name, value in options.items() if name not in own}
        given = {"algo": cls.algo, "env_id": env_id, **own}
        given["algo_kwargs"] = {**own.get("algo_kwargs", {}), **params}
        preset = find_preset(cls.algo, env_id)
        layers = [read_yaml(preset, "preset")] if preset else []
        return cls(resolve_config([*layers, Layer("argument", given)]).config)

    def learn(self, callbacks: Iterable[Listener] | None = None, *, total_timesteps: int | None = None) -> TrainResult:
        """Train until the budget is used up.

        A model that has already learned or was loaded continues its training, which needs a larger budget.
        """
        results: list[TrainResult] = []
        listeners = [*(callbacks or ()), _ResultCollector(results)]
        try:
            if self._state is not None:
                self.config = continued_config(self._state, [budget_layer(total_timesteps)])
                self._state = with_experience(self._state, self._loaded_from)
                return Fork(self.config, self._state).train(callbacks=listeners)
            if total_timesteps is not None:
                self.config = TrainConfig(**{**plain_config(self.config), "total_timesteps": total_timesteps})
            return DefaultExperimentManager().setup(self.config, listeners).train()
        finally:  # after an interrupted or failed run, the model is the one that the run saved
            if results and results[0].checkpoint_path.exists():
                self._state, self._agent = load_checkpoint(results[0].checkpoint_path), None

    def save(self, path: Path | str) -> Path:
        """Write the trained model to a checkpoint file that `load` and the command line can read."""
        if self._state is None:
            raise TrainingStateError("there is nothing to save yet: call learn() first")
        target = Path(path)
        self._state = with_spaces(with_experience(self._state, self._loaded_from), self._live_agent())
        return save_checkpoint(target if target.suffix else target.with_suffix(".pt"), self._state)

    @classmethod
    def load(cls, path: Path | str, *, encoder: type | None = None) -> Self:
        """Load a checkpoint file, or the newest intact checkpoint of a run directory.

        The environment need not be installed to predict and to export; `evaluate` and `learn` need it.
        `encoder` is needed if the network of the agent was defined in a script or notebook.
        """
        object_path(encoder)  # makes it known under the name that the checkpoint has
        # A file may have been copied without the run's replay folder, which only learn() and save() need.
        opened = open_checkpoint(path) if Path(path).is_dir() else open_without_experience(path)
        model = cls(checkpoint_config(opened.state))
        model._state, model._loaded_from = opened.state, opened.path
        model._live_agent()  # refuses a checkpoint that does not fit, before the first prediction
        return model

    def predict(self, obs: Any, deterministic: bool = True, action_masks: Any = None) -> Any:
        """Return the action for one observation (an `int` if it is discrete), or one action per row of a batch.

        An agent that was trained with masks of legal actions needs those of these observations, unless they are a part
        of them.
        """
        return self._spec.predict_fn(self._live_agent(), obs, deterministic, action_masks)

    def export(self, path: Path | str, *, format: FormatName) -> Export:  # noqa: A002  (as the command line calls it)
        """Write the deterministic policy as a file that acts without this package, once it was checked."""
        return export_agent(self._live_agent(), path, format)

    def evaluate(self, num_episodes: int = 10) -> MetricDict:
        """Play whole episodes with the most likely actions, and return statistics of their returns and lengths."""
        return self._spec.evaluate_fn(self._live_agent(), num_episodes)

    def _live_agent(self) -> Agent:
        if self._agent is None:
            self._agent = build_agent(self._spec.build_learner_fn, self.config, self._state)
        return self._agent


class DQN(Algorithm):
    """Deep Q-learning, for discrete actions."""

    algo = "dqn"


class PPO(Algorithm):
    """Proximal policy optimisation, for discrete and continuous actions."""

    algo = "ppo"


class SAC(Algorithm):
    """Soft actor-critic, for continuous actions with finite bounds."""

    algo = "sac"
